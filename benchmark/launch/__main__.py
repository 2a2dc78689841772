from benchmark.launch.launch import main

main()
