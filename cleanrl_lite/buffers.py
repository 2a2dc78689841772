"""The replay buffers: memory, drawing and checkpoints of transitions; what is learned from them is in the scripts."""

import numpy as np
import psutil
import torch

from cleanrl_lite.utils import check


def replay_memory(buffer_size, num_envs, row_shape, dtype, device):
    """A zero tensor (num_envs * slots, *row_shape) where it fits: on the training device, else in main memory.

    buffer_size, the sum over the environments, is rounded down. What is in main memory is taken when it is written to.
    """
    check(buffer_size >= 8 * num_envs, "--buffer-size must be at least 8 times --num-envs")
    slots, row_bytes = buffer_size // num_envs * num_envs, int(np.prod(row_shape)) * dtype.itemsize
    if device.type == "cuda" and slots * row_bytes < 0.9 * torch.cuda.mem_get_info()[0]:
        return torch.zeros((slots, *row_shape), dtype=dtype, device=device)
    fit = int(0.9 * psutil.virtual_memory().available / row_bytes)
    size = f"{slots * row_bytes / 1e9:,.1f} GB"
    check(slots <= fit, f"--buffer-size {buffer_size} takes {size}, more than is free; {fit} transitions would fit")
    # numpy's zeros take memory when they are written to, torch's at once.
    return torch.from_numpy(np.zeros((slots, *row_shape), str(dtype).removeprefix("torch.")))


class ReplayBuffer:
    """The last `buffer_size` transitions. Each is one row of a preallocated matrix, so a minibatch is one gather.

    `shapes` are those of the parts of a transition, in the order in which `add` takes and `unpack` returns them.
    """

    def __init__(self, buffer_size, num_envs, shapes, device):
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes]).tolist()
        self.rows = replay_memory(buffer_size, num_envs, ends[-1:], torch.float32, device)
        self.shapes, self.ends, self.num_envs, self.device = shapes, ends, num_envs, device
        self.host = self.rows[:num_envs].cpu().numpy() if self.rows.is_cuda else self.rows.numpy()  # what `add` fills
        ranges = zip(shapes, [0, *ends], ends)
        self.columns = [self.host[:, begin:end] if shape else self.host[:, begin] for shape, begin, end in ranges]
        self.length, self.position, self.filled = len(self.rows), 0, 0  # len() of a tensor takes a microsecond
        self.size = torch.zeros((), dtype=torch.float64, device=self.rows.device)  # `filled`, as a CUDA graph wants it

    def add(self, *parts):
        """Stores a transition of each environment: arrays (num_envs, *shape)."""
        start, stop = self.position, self.position + self.num_envs
        place = slice(None) if self.rows.is_cuda else slice(start, stop)
        for column, part in zip(self.columns, parts):
            column[place] = part
        if self.rows.is_cuda:
            self.rows[start:stop].copy_(torch.from_numpy(self.host), non_blocking=True)
        self.position = stop % self.length
        if self.filled < self.length:
            self.filled = stop
            self.size.fill_(stop)

    def sample(self, batch_size):
        """A minibatch, drawn with replacement, on the training device, in the form that `unpack` takes."""
        indices = (torch.rand(batch_size, dtype=torch.float64, device=self.rows.device) * self.size).long()
        return (self.rows.index_select(0, indices).to(self.device),)

    def unpack(self, rows):
        """The parts of a minibatch: tensors (batch_size, *shape)."""
        parts = rows.tensor_split(self.ends[:-1], dim=1)
        return [part.reshape(-1, *shape) for part, shape in zip(parts, self.shapes)]

    def state_dict(self):
        rows = torch.from_numpy(self.rows[: self.filled].cpu().numpy())  # a view, of which torch.save writes no more
        return dict(sizes=[len(self.rows), self.num_envs], position=self.position, rows=rows)

    def load_state_dict(self, state):
        check(state["sizes"] == [len(self.rows), self.num_envs], "a resumed run keeps its --buffer-size and --num-envs")
        self.position, self.filled = state["position"], len(state["rows"])
        self.rows[: self.filled] = state["rows"]
        self.size.fill_(self.filled)


class FrameReplayBuffer:
    """A replay buffer for stacks of 4 frames that stores every frame once: 7 KB a transition of Atari, not 56.

    Each environment has a ring of its own; they lie interleaved: first all slots 0, then all slots 1. Slot t holds the
    newest frame of the t-th observation and what came of it; the slots t - 3 to t + 1 make that stack and the next one.
    At the start of a game the older frames are blank, as the agent saw them. The last frame of a truncated game has a
    slot too, with age 0, which no transition starts from.
    """

    def __init__(self, buffer_size, num_envs, frame_shape, device):
        self.frames = replay_memory(buffer_size, num_envs, frame_shape, torch.uint8, device)
        self.rows = torch.zeros((len(self.frames), 4), device=self.frames.device)  # action, reward, terminated, age
        self.num_envs, self.length, self.device = num_envs, len(self.frames) // num_envs, device
        self.age = np.ones(num_envs)  # how many frames of the next observation are of the game under way, 1 to 4
        self.written = np.zeros(num_envs, dtype=np.int64)  # slots so far; the newest one waits for its next frame
        self.first, self.count = torch.zeros((2, num_envs), dtype=torch.int64, device=self.rows.device)  # to draw from

    def add(self, obs, actions, rewards, terminations, truncations, new_games, final_obs):
        """Stores a transition of each environment: stacks (num_envs, 4, *frame_shape), the others (num_envs,)."""
        for n in range(self.num_envs):
            self.write(n, obs[n][-1], (actions[n], rewards[n], terminations[n], self.age[n]))
            if truncations[n]:
                self.write(n, final_obs[n][-1], (0, 0, 0, 0))
        self.age = np.where(new_games, 1, np.minimum(self.age + 1, 4))
        self.publish()

    def write(self, n, frame, row):
        place = self.written[n] % self.length * self.num_envs + n
        self.frames[place].copy_(torch.from_numpy(frame), non_blocking=True)
        self.rows[place].copy_(torch.tensor(row, dtype=torch.float32), non_blocking=True)
        self.written[n] += 1

    def publish(self):
        # Three slots of a full ring lack frames of their stacks; to the fourth, `sample` may step back.
        first = np.where(self.written > self.length, self.written - self.length + 4, 0)
        self.first.copy_(torch.from_numpy(first), non_blocking=True)
        self.count.copy_(torch.from_numpy(self.written - 1 - first), non_blocking=True)

    def sample(self, batch_size):
        """A minibatch, drawn with replacement, on the training device, in the form that `unpack` takes."""
        env, slot = torch.rand((2, batch_size), dtype=torch.float64, device=self.rows.device)
        env = (env * self.num_envs).long()
        slot = self.first[env] + (slot * self.count[env]).long()
        age = self.rows[slot % self.length * self.num_envs + env, 3]
        slot = slot - (age == 0).long()  # no transition's start: the one before it
        slots = slot[:, None] + torch.arange(-3, 2, device=slot.device)
        stack = slots % self.length * self.num_envs + env[:, None]
        frames = self.frames.index_select(0, stack.flatten()).unflatten(0, stack.shape)
        return frames.to(self.device), self.rows[stack[:, 3]].to(self.device)

    def unpack(self, frames, rows):
        """obs, actions, rewards, next_obs, terminations of a minibatch; frames (batch_size, 5, *frame_shape)."""
        actions, rewards, terminations, age = rows.unbind(1)
        frames = frames * (torch.arange(3, -2, -1, device=age.device) < age[:, None])[:, :, None, None]
        return frames[:, :4], actions, rewards, frames[:, 1:], terminations

    def state_dict(self):
        used = min(int(self.written.max()), self.length) * self.num_envs
        frames, rows = (torch.from_numpy(x[:used].cpu().numpy()) for x in (self.frames, self.rows))
        return dict(sizes=[self.length, self.num_envs], written=self.written.tolist(), frames=frames, rows=rows)

    def load_state_dict(self, state):
        check(state["sizes"] == [self.length, self.num_envs], "a resumed run keeps its --buffer-size and --num-envs")
        self.frames[: len(state["frames"])], self.rows[: len(state["rows"])] = state["frames"], state["rows"]
        self.written[:] = state["written"]
        self.publish()
        # The games go on without us: the newest observation is the next one of the transition before it, and no more;
        # where it begins a game, it is not even that, and is written over.
        newest = (self.written - 1) % self.length * self.num_envs + np.arange(self.num_envs)
        self.written -= self.rows[newest, 3].cpu().numpy() == 1
        self.rows[newest, 3] = 0
