# Sixteen agents, each of which moves to a target of its own in a square, for Godot 3.2 and the client of godot-rl 0.8.
# --actions=continuous: a velocity; discrete: left, stay or right, and down, stay or up; mixed: a velocity, and whether
# to grab, without which a target is not reached; a grab at nothing costs 0.05.
# Reward: by how much the distance shrank, and 1 at the target, which ends the episode, as its 50th step does.
extends Node

const AGENTS = 16
const STEPS = 50
const NEAR = 0.1
const ACTIONS = {
	continuous = {velocity = {size = 2, action_type = "continuous"}},
	discrete = {x = {size = 3, action_type = "discrete"}, y = {size = 3, action_type = "discrete"}},
	mixed = {grab = {size = 2, action_type = "discrete"}, velocity = {size = 2, action_type = "continuous"}},
}

var options = {port = "11008", env_seed = "0", speedup = "1", action_repeat = "8", actions = "continuous"}
var stream = StreamPeerTCP.new()
var agents = []
var ticks = 0


func _ready():
	for argument in OS.get_cmdline_args():
		var words = argument.trim_prefix("--").split("=")
		if words.size() == 2:
			options[words[0]] = words[1]
	seed(int(options.env_seed))
	Engine.time_scale = float(options.speedup)  # a tick is a sixtieth of a second of the game, however fast it runs
	Engine.iterations_per_second = 60 * int(options.speedup)
	OS.low_processor_usage_mode_sleep_usec = 1  # the headless server sleeps 6.9 ms a frame otherwise
	for i in AGENTS:
		agents.append(start())
	stream.connect_to_host("127.0.0.1", int(options.port))
	while stream.get_status() == StreamPeerTCP.STATUS_CONNECTING:
		OS.delay_msec(10)
	stream.set_no_delay(true)
	listen()


func _physics_process(delta):
	for agent in agents:
		agent.position += agent.velocity * delta
		agent.position = Vector2(clamp(agent.position.x, -1, 1), clamp(agent.position.y, -1, 1))
	ticks += 1
	if ticks % int(options.action_repeat) == 0:
		var answer = {type = "step", obs = [], reward = [], done = []}
		for i in AGENTS:
			var outcome = judge(agents[i])
			answer.reward.append(outcome[0])
			answer.done.append(outcome[1])
			if outcome[1]:
				agents[i] = start()
			answer.obs.append(observe(agents[i]))
		send(answer)
		listen()


func start():
	var place = Vector2(rand_range(-1, 1), rand_range(-1, 1))
	var target = Vector2(rand_range(-1, 1), rand_range(-1, 1))
	return {position = place, target = target, velocity = Vector2(), grab = true, steps = 0, before = place.distance_to(target)}


func observe(agent):
	var way = agent.target - agent.position
	return {obs = [way.x, way.y, 1.0 - float(agent.steps) / STEPS]}


func judge(agent):  # reward, and whether the episode is over
	var distance = agent.position.distance_to(agent.target)
	var reward = agent.before - distance
	var reached = agent.grab and distance < NEAR
	if reached:
		reward += 1
	elif agent.grab and options.actions == "mixed":
		reward -= 0.05
	agent.before = distance
	agent.steps += 1
	return [reward, reached or agent.steps == STEPS]


func act(agent, action):
	if options.actions == "discrete":
		agent.velocity = Vector2(action.x - 1, action.y - 1)
	else:
		agent.velocity = Vector2(action.velocity[0], action.velocity[1])
	agent.grab = action.grab == 1 if options.actions == "mixed" else true


func send(message):
	stream.put_utf8_string(to_json(message))


func listen():  # answers messages until one has the next actions; the client closes, or is gone: the game ends
	while true:
		var message = parse_json(stream.get_utf8_string()) if stream.get_status() == StreamPeerTCP.STATUS_CONNECTED else null
		if message == null or message.type == "close":
			set_physics_process(false)
			return get_tree().quit()
		elif message.type == "env_info":
			var obs_space = {obs = {size = [3], space = "box"}}
			send({type = "env_info", n_agents = AGENTS, observation_space = obs_space, action_space = ACTIONS[options.actions]})
		elif message.type == "reset":
			var answer = {type = "reset", obs = []}
			for i in AGENTS:
				agents[i] = start()
				answer.obs.append(observe(agents[i]))
			send(answer)
		elif message.type == "action":
			for i in AGENTS:
				act(agents[i], message.action[i])
			return
