//! The agent's side: a handle whose calls go to a task that talks to the holder, one request at a time.
//!
//! Calls may be dropped half-way: what was asked for is carried out nevertheless, and the record of what is installed
//! stays true.

use super::actor::{Actor, Call, Link, REPLY_LIMIT};
use super::config::RedirectConfig;
use super::error::{RedirectError, RedirectEvent, explain};
use super::protocol::{Reply, Request};
use super::sets::Desired;
use crate::model::IpFamily;
use std::io;
use std::path::Path;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// Events kept for a slow reader; more restorations than these are dropped (the end of the holder is told by the closed
/// channel, which cannot be missed).
const EVENTS: usize = 64;

/// Packets since installation, by the table's counters ([`COUNTERS`](super::ruleset::COUNTERS)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RedirectCounters {
    /// Brought to our sockets.
    pub delivered: u64,
    /// Host clients' packets sent round to our sockets.
    pub diverted: u64,
    /// Left to kube-proxy: the lease had run out.
    pub lease_expired: u64,
    /// Left to kube-proxy: no socket of ours.
    pub no_socket: u64,
    /// Host clients' packets left to kube-proxy: the lease had run out.
    pub host_lease_expired: u64,
}

/// The installed redirection of one instance. Dropping it removes everything, without waiting.
#[derive(Debug)]
pub struct Redirect {
    config: RedirectConfig,
    families: Vec<IpFamily>,
    notes: Vec<String>,
    holder: u32,
    calls: mpsc::Sender<Call>,
}

impl Redirect {
    /// Installs routing rules, routes and the table with empty sets and no lease: nothing is redirected yet. Rules and
    /// routes left by an earlier instance are reused.
    ///
    /// Call it on the agent's control thread, inside its runtime: the holder ends when that thread ends.
    ///
    /// # Errors
    /// See [`RedirectError`]; nothing of ours is left then.
    pub async fn install(config: RedirectConfig) -> Result<(Self, mpsc::Receiver<RedirectEvent>), RedirectError> {
        Self::install_with(config, &super::own_program()).await
    }

    /// [`Redirect::install`] with another program as the holder (it must start with [`super::holder::dispatch`]).
    ///
    /// # Errors
    /// As [`Redirect::install`].
    pub async fn install_with(
        config: RedirectConfig,
        program: &Path,
    ) -> Result<(Self, mpsc::Receiver<RedirectEvent>), RedirectError> {
        config.validate()?;
        let mut link = Link::start(program)?;
        link.send(&Request::Start(Box::new(config.clone()))).await?;
        let reply = timeout(REPLY_LIMIT, link.receive()).await;
        let reply = reply.map_err(|_| io::Error::other("no answer in time"))??;
        let (families, notes) = match reply {
            Some(Reply::Ready { families, notes }) => (families.into_iter().map(IpFamily::from).collect(), notes),
            Some(Reply::Failed(failure)) => return Err(explain(failure, &config).await),
            Some(_) => return Err(RedirectError::Holder(io::Error::other("an unexpected first answer"))),
            None => {
                return Err(RedirectError::Holder(io::Error::other(
                    "it ended before it answered; see its message",
                )));
            }
        };
        let holder = link.pid();
        let (calls, receiver) = mpsc::channel(16);
        let (event_sender, events) = mpsc::channel(EVENTS);
        let families: Vec<IpFamily> = families;
        let actor = Actor::new(link, config.clone(), families.clone(), event_sender);
        tokio::spawn(actor.run(receiver));
        Ok((
            Self {
                config,
                families,
                notes,
                holder,
                calls,
            },
            events,
        ))
    }

    /// The families redirected: those asked for, without IPv6 where the node has it disabled.
    pub fn families(&self) -> &[IpFamily] {
        &self.families
    }

    /// What the operator should know, such as "IPv6 is not redirected: …".
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The configuration it was installed with, marks included.
    pub fn config(&self) -> &RedirectConfig {
        &self.config
    }

    /// Process id of the holder.
    pub fn holder_pid(&self) -> u32 {
        self.holder
    }

    /// Makes the sets hold `desired`, in one transaction of what differs, and reads them back. Returns whether anything had
    /// to be changed.
    ///
    /// # Errors
    /// An address that cannot be redirected or a refused transaction: nothing was changed.
    pub async fn apply(&self, desired: Desired) -> Result<bool, RedirectError> {
        desired.validate(&self.families)?;
        self.call(|reply| Call::Apply(Box::new(desired), reply)).await
    }

    /// Empties `svc`: kube-proxy takes all new flows, what runs through us goes on, because `own` and `ep` stay. The first
    /// step of a shutdown; [`Redirect::remove`] is the last.
    ///
    /// # Errors
    /// As [`Redirect::apply`].
    pub async fn release_all(&self) -> Result<bool, RedirectError> {
        self.call(Call::ReleaseAll).await
    }

    /// Renews the lease of every family for [`LEASE_SECONDS`](super::ruleset::LEASE_SECONDS). To be called while every worker turns, and only
    /// then.
    ///
    /// # Errors
    /// The lease is not in the table; new flows go to kube-proxy when the old one runs out.
    pub async fn refresh_lease(&self) -> Result<(), RedirectError> {
        self.call(Call::Lease).await
    }

    /// Reads the table's counters.
    ///
    /// # Errors
    /// The holder is gone or its answer was not understood.
    pub async fn counters(&self) -> Result<RedirectCounters, RedirectError> {
        self.call(Call::Counters).await
    }

    /// Removes everything and waits until it is gone.
    ///
    /// # Errors
    /// The holder could not remove it all, or ended in another way than asked.
    pub async fn remove(self) -> Result<(), RedirectError> {
        self.call(Call::Remove).await
    }

    async fn call<T>(
        &self,
        make: impl FnOnce(oneshot::Sender<Result<T, RedirectError>>) -> Call,
    ) -> Result<T, RedirectError> {
        let (sender, receiver) = oneshot::channel();
        self.calls
            .send(make(sender))
            .await
            .map_err(|_| RedirectError::HolderDied)?;
        receiver.await.map_err(|_| RedirectError::HolderDied)?
    }
}
