//! Limits on admin connections: how many at a time, and how long each may last.

use axum::serve::Listener;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;

/// A scraper, some probes and some people; more wait in the kernel's backlog. Enough that a few dozen idle ones do not keep
/// a probe out.
pub const MAX_CONNECTIONS: usize = 256;

/// A client that sends its request byte by byte, or nothing, cannot hold a place longer than this. A dump of a large cluster
/// takes about a second.
pub const MAX_AGE: Duration = Duration::from_secs(10);

/// A listener that takes a new connection only when there is room.
pub struct Limited<L> {
    inner: L,
    room: Arc<Semaphore>,
    max_age: Duration,
}

impl<L> Limited<L> {
    pub fn new(inner: L) -> Self {
        Self::with(inner, MAX_CONNECTIONS, MAX_AGE)
    }

    pub fn with(inner: L, connections: usize, max_age: Duration) -> Self {
        Self {
            inner,
            room: Arc::new(Semaphore::new(connections)),
            max_age,
        }
    }
}

impl<L: Listener> Listener for Limited<L> {
    type Io = Bounded<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        // The semaphore is never closed, so the only possible error never comes.
        let permit = self.room.clone().acquire_owned().await.ok();
        let (io, address) = self.inner.accept().await;
        let bounded = Bounded {
            io,
            age: Box::pin(tokio::time::sleep(self.max_age)),
            _permit: permit,
        };
        (bounded, address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.inner.local_addr()
    }
}

/// A connection with a place and an end.
pub struct Bounded<T> {
    io: T,
    age: Pin<Box<Sleep>>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl<T> Bounded<T> {
    fn too_old(&mut self, cx: &mut Context<'_>) -> bool {
        self.age.as_mut().poll(cx).is_ready()
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Bounded<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.too_old(cx) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Bounded<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.too_old(cx) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
