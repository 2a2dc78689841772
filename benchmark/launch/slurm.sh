#!/bin/sh
# A task of a Slurm array job: the command in line SLURM_ARRAY_TASK_ID of a list.
#     python -m benchmark.launch ppo --env-ids CartPole-v1 --list > jobs.txt
#     sbatch --array=1-$(wc -l < jobs.txt) --time=1:00:00 benchmark/launch/slurm.sh jobs.txt
# More words go to the launcher, such as --runs-dir. Two minutes before its time limit, a task
# saves and returns to the queue; a preempted one saves, and Slurm starts it again.
#SBATCH --requeue --open-mode=append --output=slurm-%A_%a.out --signal=B:USR1@120
jobs=$1
shift
trap 'limit=1; kill "$task"' USR1
trap 'kill "$task"' TERM
python -m benchmark.launch --jobs 1 --line "$SLURM_ARRAY_TASK_ID" "$@" < "$jobs" &
task=$!
while kill -0 $task 2> /dev/null; do  # a signal interrupts wait
    wait $task
    status=$?
done
[ -z "$limit" ] || scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
exit $status
