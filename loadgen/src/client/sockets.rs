//! The client's sockets: a fixed set, or one per query that lives as long as the query is remembered. Bounded.

use super::load::{Load, Ports};
use crate::error::Error;
use crate::sys::{self, Poller};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};

struct Slot {
    socket: Option<UdpSocket>,
    /// Queries that use it.
    users: u32,
    /// Tells an event of the socket that was here before from one of the present one.
    generation: u32,
}

pub(super) struct Sockets {
    server: SocketAddr,
    bind: Option<IpAddr>,
    receive_buffer: usize,
    fixed: bool,
    limit: usize,
    slots: Vec<Slot>,
    free: Vec<u32>,
    next: usize,
    opened: u64,
}

impl Sockets {
    /// For fixed ports, opens `limit` sockets at once.
    pub fn new(load: &Load, limit: usize, poller: &Poller) -> Result<Self, Error> {
        let fixed = matches!(load.ports, Ports::Fixed { .. });
        let receive_buffer = match (load.receive_buffer, fixed) {
            (0, true) => 4 << 20,
            (bytes, _) => bytes,
        };
        let mut sockets = Sockets {
            server: load.server,
            bind: load.bind,
            receive_buffer,
            fixed,
            limit,
            slots: Vec::new(),
            free: Vec::new(),
            next: 0,
            opened: 0,
        };
        // One is opened in both cases: a bind address that does not exist is told before anything is sent.
        let first = if fixed { limit } else { 1 };
        for _ in 0..first {
            let index = sockets.open(poller).map_err(|e| match load.bind {
                Some(bind) => Error::option("bind", format!("no socket at {bind}: {e}")),
                None => Error::system("cannot open a client socket", e),
            })?;
            if !fixed {
                sockets.close(index);
                sockets.opened = 0;
            }
        }
        Ok(sockets)
    }

    /// A socket for the next unit of queries: the next of the fixed ones or a new one. `Ok(None)`: too many are open.
    pub fn acquire(&mut self, poller: &Poller) -> io::Result<Option<u32>> {
        if self.fixed {
            let index = self.next;
            self.next = (self.next + 1) % self.slots.len();
            // limit fits u32: it is at most the number of open files.
            return Ok(u32::try_from(index).ok());
        }
        if self.slots.len() - self.free.len() >= self.limit {
            return Ok(None);
        }
        self.open(poller).map(Some)
    }

    fn open(&mut self, poller: &Poller) -> io::Result<u32> {
        let socket = sys::client_socket(self.server, self.bind, self.receive_buffer)?;
        let index = match self.free.last() {
            Some(&index) => index,
            None => u32::try_from(self.slots.len()).map_err(|_| io::ErrorKind::OutOfMemory)?,
        };
        let generation = self.slots.get(index as usize).map_or(0, |slot| slot.generation);
        poller.add(&socket, u64::from(generation) << 32 | u64::from(index))?;
        self.opened += 1;
        match self.free.pop() {
            Some(_) => self.slots[index as usize].socket = Some(socket),
            None => self.slots.push(Slot {
                socket: Some(socket),
                users: 0,
                generation,
            }),
        }
        Ok(index)
    }

    fn close(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        if slot.socket.take().is_some() {
            slot.generation = slot.generation.wrapping_add(1);
            self.free.push(index);
        }
    }

    pub fn add_user(&mut self, index: u32) {
        self.slots[index as usize].users += 1;
    }

    /// One query less uses the socket; a fresh one is closed with its last query.
    pub fn release(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.users -= 1;
        if slot.users == 0 && !self.fixed {
            self.close(index);
        }
    }

    /// Closes a fresh socket that never got a user.
    pub fn release_unused(&mut self, index: u32) {
        if self.slots[index as usize].users == 0 && !self.fixed {
            self.close(index);
        }
    }

    pub fn get(&self, index: u32) -> Option<&UdpSocket> {
        self.slots.get(index as usize)?.socket.as_ref()
    }

    /// The socket an event is about, unless it was closed since.
    pub fn by_token(&self, token: u64) -> Option<(u32, &UdpSocket)> {
        let index = (token & 0xffff_ffff) as u32;
        let slot = self.slots.get(index as usize)?;
        if u64::from(slot.generation) != token >> 32 {
            return None;
        }
        Some((index, slot.socket.as_ref()?))
    }

    pub fn is_fixed(&self) -> bool {
        self.fixed
    }

    pub fn opened(&self) -> u64 {
        self.opened
    }
}
