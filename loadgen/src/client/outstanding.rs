//! Queries that are waited for or still remembered, keyed by (socket, key). Sans-io: it is told the time and never
//! looks at a clock. Bounded by its capacity; a full table refuses and the caller counts.

use super::Query;
use foldhash::fast::RandomState;
use std::collections::{HashMap, VecDeque};

/// Where a query is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// No right answer yet.
    Waiting,
    /// It ended and has had its first answer: what comes now is a duplicate.
    Answered,
    /// It failed by timeout and nothing came so far: what comes now is late.
    TimedOut,
}

/// One query.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub query: Query,
    pub socket: u32,
    pub state: State,
    /// Times sent.
    pub sends: u16,
    /// Right answers so far, whenever they came.
    pub answers: u16,
    pub intended_ns: u64,
    pub deadline_ns: u64,
}

/// A reference to an entry that notices when the place was given to another query.
#[derive(Debug, Clone, Copy)]
pub(super) struct Handle {
    pub index: u32,
    seq: u64,
}

pub(super) struct Outstanding {
    entries: Vec<Entry>,
    free: Vec<u32>,
    by_key: HashMap<(u32, u64), u32, RandomState>,
    capacity: usize,
    waiting: usize,
    timeouts: VecDeque<(u64, Handle)>,
    retransmits: Vec<VecDeque<(u64, Handle)>>,
    lingers: VecDeque<(u64, Handle)>,
}

impl Outstanding {
    pub fn new(capacity: usize, retransmits: usize) -> Self {
        Outstanding {
            entries: Vec::new(),
            free: Vec::new(),
            by_key: HashMap::default(),
            capacity,
            waiting: 0,
            timeouts: VecDeque::new(),
            retransmits: vec![VecDeque::new(); retransmits],
            lingers: VecDeque::new(),
        }
    }

    pub fn is_full(&self) -> bool {
        self.by_key.len() >= self.capacity
    }

    pub fn waiting(&self) -> usize {
        self.waiting
    }

    pub fn lingering(&self) -> usize {
        self.lingers.len()
    }

    pub fn in_use(&self, socket: u32, key: u64) -> bool {
        self.by_key.contains_key(&(socket, key))
    }

    pub fn find(&self, socket: u32, key: u64) -> Option<u32> {
        self.by_key.get(&(socket, key)).copied()
    }

    pub fn get(&self, index: u32) -> &Entry {
        &self.entries[index as usize]
    }

    pub fn get_mut(&mut self, index: u32) -> &mut Entry {
        &mut self.entries[index as usize]
    }

    fn handle(&self, index: u32) -> Handle {
        Handle {
            index,
            seq: self.entries[index as usize].query.seq,
        }
    }

    fn alive(&self, handle: Handle) -> bool {
        let entry = &self.entries[handle.index as usize];
        entry.query.seq == handle.seq && entry.sends > 0
    }

    /// Adds a query about to be sent for the first time at `now_ns`. `None`: full, or the key is in use.
    pub fn insert(&mut self, entry: Entry) -> Option<u32> {
        if self.is_full() || self.in_use(entry.socket, entry.query.key) {
            return None;
        }
        let index = match self.free.pop() {
            Some(index) => {
                self.entries[index as usize] = entry;
                index
            }
            None => {
                let index = u32::try_from(self.entries.len()).ok()?;
                self.entries.push(entry);
                index
            }
        };
        self.by_key.insert((entry.socket, entry.query.key), index);
        self.waiting += 1;
        Some(index)
    }

    /// Starts the clocks of a query that was sent at `now_ns`. Calls come in the order of time, so every queue stays
    /// sorted.
    pub fn start_timers(&mut self, index: u32, now_ns: u64, retransmit_ns: &[u64]) {
        let handle = self.handle(index);
        let deadline = self.get(index).deadline_ns;
        self.timeouts.push_back((deadline, handle));
        for (queue, after) in self.retransmits.iter_mut().zip(retransmit_ns) {
            let at = now_ns + after;
            if at < deadline {
                queue.push_back((at, handle));
            }
        }
    }

    /// Ends a waiting query; it stays known until `until_ns`.
    pub fn end(&mut self, index: u32, state: State, until_ns: u64) {
        self.get_mut(index).state = state;
        self.waiting -= 1;
        let handle = self.handle(index);
        self.lingers.push_back((until_ns, handle));
    }

    /// Forgets a query that is still waiting (it could not be sent). Returns its socket.
    pub fn abandon(&mut self, index: u32) -> u32 {
        self.waiting -= 1;
        self.remove(index)
    }

    fn remove(&mut self, index: u32) -> u32 {
        let entry = &mut self.entries[index as usize];
        // sends == 0 marks a free place, so that timers of the old query find nothing.
        entry.sends = 0;
        let (socket, key) = (entry.socket, entry.query.key);
        self.by_key.remove(&(socket, key));
        self.free.push(index);
        socket
    }

    /// The next query whose timeout is over.
    pub fn pop_timeout(&mut self, now_ns: u64) -> Option<u32> {
        while let Some(&(at, handle)) = self.timeouts.front() {
            let waiting = self.alive(handle) && self.get(handle.index).state == State::Waiting;
            if waiting && at > now_ns {
                return None;
            }
            self.timeouts.pop_front();
            if waiting {
                return Some(handle.index);
            }
        }
        None
    }

    /// The next query to be sent again.
    pub fn pop_retransmit(&mut self, now_ns: u64) -> Option<u32> {
        for i in 0..self.retransmits.len() {
            while let Some(&(at, handle)) = self.retransmits[i].front() {
                let waiting = self.alive(handle) && self.get(handle.index).state == State::Waiting;
                if waiting && at > now_ns {
                    break;
                }
                self.retransmits[i].pop_front();
                if waiting {
                    return Some(handle.index);
                }
            }
        }
        None
    }

    /// Forgets the next finished query whose time is over, or the oldest one at all if `force`. Returns its socket.
    pub fn pop_linger(&mut self, now_ns: u64, force: bool) -> Option<u32> {
        let &(until, handle) = self.lingers.front()?;
        if until > now_ns && !force {
            return None;
        }
        self.lingers.pop_front();
        Some(self.remove(handle.index))
    }

    /// When to look again.
    pub fn next_ns(&self) -> u64 {
        let front = |queue: &VecDeque<(u64, Handle)>| queue.front().map_or(u64::MAX, |&(at, _)| at);
        self.retransmits
            .iter()
            .map(front)
            .fold(front(&self.timeouts).min(front(&self.lingers)), u64::min)
    }
}
