//! The agent's side: a handle whose calls go to a task that talks to the holder, one request at a time.
//!
//! Calls may be dropped half-way: what was asked for is carried out nevertheless, and the record of what is installed
//! stays true.

use super::config::{RedirectConfig, RedirectConfigError};
use super::protocol::{Failure, Reply, Request};
use super::ruleset::{self, COUNTERS, lease_name};
use super::sets::{Desired, ElementError, TouchedSet, objects, parse_set, transaction};
use crate::model::IpFamily;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// Longest wait for the holder. Ordinary requests take a few milliseconds.
const REPLY_LIMIT: Duration = Duration::from_secs(15);

/// Events kept for a slow reader; more restorations than these are dropped (the end of the holder is told by the closed
/// channel, which cannot be missed).
const EVENTS: usize = 64;

/// Why the redirection could not be installed or changed.
#[derive(Debug, thiserror::Error)]
pub enum RedirectError {
    /// Bad configuration.
    #[error("redirect: {0}")]
    Config(#[from] RedirectConfigError),
    /// An address that cannot be redirected. Nothing was changed.
    #[error("redirect: {0}")]
    Element(#[from] ElementError),
    /// A live instance has this id.
    #[error(
        "redirect: another live process owns table `inet {table}`; stop that instance or give this one another `instance`"
    )]
    AlreadyRunning {
        /// The table's name.
        table: String,
    },
    /// A table of our name that nobody owns.
    #[error(
        "redirect: table `inet {table}` exists and no process owns it (restored from a saved rule set?); \
         run `nodeward cleanup --instance {instance}`"
    )]
    Leftover {
        /// The table's name.
        table: String,
        /// The instance id.
        instance: String,
    },
    /// nft cannot be run.
    #[error("redirect: {0}; install nftables 1.0.2 or later and give the process CAP_NET_ADMIN")]
    NoNft(String),
    /// nft or the kernel refused the table.
    #[error("redirect: the kernel refused the rule set: {message}{advice}")]
    Refused {
        /// nft's message.
        message: String,
        /// What is missing and how to get it, if it could be found out.
        advice: String,
    },
    /// Rules or routes could not be installed.
    #[error("redirect: cannot install {0} (needs CAP_NET_ADMIN and CONFIG_IP_MULTIPLE_TABLES)")]
    Routing(String),
    /// None of the families asked for is available.
    #[error("redirect: no address family left: {0}")]
    NoFamily(String),
    /// nft refused a transaction. The previous state stands.
    #[error("redirect: nft refused the change, nothing was changed: {0}")]
    Transaction(String),
    /// The sets do not hold what was written. What they do hold is what the next `apply` starts from.
    #[error("redirect: set {set} holds {found} elements of {family} after the change, not the {wanted} written")]
    ReadBack {
        /// Name of the set.
        set: &'static str,
        /// Its family.
        family: IpFamily,
        /// Elements wanted.
        wanted: usize,
        /// Elements found.
        found: usize,
    },
    /// The lease was written but is not there.
    #[error("redirect: the lease is not in the table after its renewal")]
    Lease,
    /// nft's answer was not understood.
    #[error("redirect: {0}")]
    Answer(String),
    /// The holder is gone, and the table with it: kube-proxy serves. Install again.
    #[error(
        "redirect: the holder process is gone and the table with it; kube-proxy serves until it is installed again"
    )]
    HolderDied,
    /// The holder cannot be started or spoken to.
    #[error("redirect: holder process: {0}")]
    Holder(#[from] io::Error),
}

/// What happened to the redirection without our doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedirectEvent {
    /// Somebody removed these rules or routes; they are back.
    Restored(Vec<String>),
    /// A removed rule or route could not be put back; host clients are cut off until this is cured or the lease is let go.
    NotRestored(String),
    /// The holder ended, and the table with it. Sent last; then the channel closes.
    HolderDied,
}

/// Packets since installation, by the table's counters ([`ruleset::COUNTERS`]).
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

enum Call {
    Apply(Box<Desired>, oneshot::Sender<Result<bool, RedirectError>>),
    ReleaseAll(oneshot::Sender<Result<bool, RedirectError>>),
    Lease(oneshot::Sender<Result<(), RedirectError>>),
    Counters(oneshot::Sender<Result<RedirectCounters, RedirectError>>),
    Remove(oneshot::Sender<Result<(), RedirectError>>),
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
        let holder = link.child.id().unwrap_or_default();
        let (calls, receiver) = mpsc::channel(16);
        let (event_sender, events) = mpsc::channel(EVENTS);
        let families: Vec<IpFamily> = families;
        let actor = Actor {
            link,
            config: config.clone(),
            families: families.clone(),
            installed: Desired::default(),
            events: event_sender,
            next_id: 0,
        };
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

    /// Renews the lease of every family for [`ruleset::LEASE_SECONDS`]. To be called while every worker turns, and only
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

async fn explain(failure: Failure, config: &RedirectConfig) -> RedirectError {
    let table = config.table();
    match failure {
        Failure::AlreadyRunning => RedirectError::AlreadyRunning { table },
        Failure::Leftover => RedirectError::Leftover {
            table,
            instance: config.instance.clone(),
        },
        Failure::NoNft(message) => RedirectError::NoNft(message),
        Failure::Refused(message) => {
            let missing = super::verdict::missing_features(config).await;
            let advice = missing
                .iter()
                .map(|(name, needs, _)| format!("; missing: {name}, needs {needs}"))
                .collect();
            RedirectError::Refused { message, advice }
        }
        Failure::Routing(message) => RedirectError::Routing(message),
        Failure::NoFamily(message) => RedirectError::NoFamily(message),
        Failure::Other(message) => RedirectError::Holder(io::Error::other(message)),
    }
}

/// The holder process and the pipes to it.
struct Link {
    child: Child,
    /// The only write end; its closing is what ends the holder.
    stdin: ChildStdin,
    replies: Lines<BufReader<ChildStdout>>,
}

impl Link {
    fn start(program: &Path) -> io::Result<Self> {
        let mut command = std::process::Command::new(program);
        // Its own group: an interrupt from the terminal is for the agent alone.
        command
            .arg(super::holder::SUBCOMMAND)
            .arg(std::process::id().to_string())
            .process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = tokio::process::Command::from(command).spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (stdin, stdout) = pipes.ok_or_else(|| io::Error::other("no pipes"))?;
        Ok(Self {
            child,
            stdin,
            replies: BufReader::new(stdout).lines(),
        })
    }

    async fn send(&mut self, request: &Request) -> io::Result<()> {
        let mut line = serde_json::to_vec(request).map_err(io::Error::other)?;
        line.push(b'\n');
        self.stdin.write_all(&line).await
    }

    async fn receive(&mut self) -> io::Result<Option<Reply>> {
        match self.replies.next_line().await? {
            None => Ok(None),
            Some(line) => serde_json::from_str(&line).map(Some).map_err(io::Error::other),
        }
    }
}

struct Actor {
    link: Link,
    config: RedirectConfig,
    families: Vec<IpFamily>,
    /// What the sets hold, as last read back.
    installed: Desired,
    events: mpsc::Sender<RedirectEvent>,
    next_id: u64,
}

impl Actor {
    /// Ends when the handle is dropped, when asked to remove everything, or when the holder is gone.
    async fn run(mut self, mut calls: mpsc::Receiver<Call>) {
        loop {
            tokio::select! {
                call = calls.recv() => match call {
                    None => return,
                    Some(Call::Remove(reply)) => {
                        let _ = reply.send(self.remove().await);
                        return;
                    }
                    Some(call) => self.serve(call).await,
                },
                reply = self.link.receive() => match reply {
                    Ok(Some(reply)) => self.event(reply),
                    Ok(None) | Err(_) => {
                        // Not `try_send`: this one must not be lost. A receiver that is gone does not want it.
                        drop(calls);
                        let _ = self.events.send(RedirectEvent::HolderDied).await;
                        return;
                    }
                },
            }
        }
    }

    async fn serve(&mut self, call: Call) {
        // A caller that does not wait for the result any more is no error.
        match call {
            Call::Apply(desired, reply) => drop(reply.send(self.apply(*desired).await)),
            Call::ReleaseAll(reply) => {
                let desired = Desired {
                    svc: Default::default(),
                    ..self.installed.clone()
                };
                drop(reply.send(self.apply(desired).await));
            }
            Call::Lease(reply) => drop(reply.send(self.lease().await)),
            Call::Counters(reply) => drop(reply.send(self.counters().await)),
            Call::Remove(reply) => drop(reply.send(Ok(()))),
        }
    }

    fn event(&self, reply: Reply) {
        let event = match reply {
            Reply::Restored(items) => RedirectEvent::Restored(items),
            Reply::NotRestored(error) => RedirectEvent::NotRestored(error),
            // An answer to a request that timed out.
            Reply::Done { .. } | Reply::Ready { .. } | Reply::Failed(_) => return,
        };
        let _ = self.events.try_send(event);
    }

    /// One request and its reply: nft's complaints and answers.
    async fn ask(&mut self, line: String, questions: Vec<String>) -> Result<(String, Vec<String>), RedirectError> {
        self.next_id += 1;
        let wanted = self.next_id;
        let work = async {
            // A broken pipe means what an ended reply stream means.
            let sent = self
                .link
                .send(&Request::Run {
                    id: wanted,
                    line,
                    questions,
                })
                .await;
            sent.map_err(|_| RedirectError::HolderDied)?;
            loop {
                match self.link.receive().await {
                    Ok(Some(Reply::Done { id, errors, answers })) if id == wanted => return Ok((errors, answers)),
                    Ok(Some(reply)) => self.event(reply),
                    Ok(None) | Err(_) => return Err(RedirectError::HolderDied),
                }
            }
        };
        match timeout(REPLY_LIMIT, work).await {
            Ok(result) => result,
            Err(_) => {
                // A half-sent request cannot be taken back. Without the holder kube-proxy serves, which is the safe side.
                let _ = self.link.child.start_kill();
                Err(RedirectError::HolderDied)
            }
        }
    }

    async fn apply(&mut self, desired: Desired) -> Result<bool, RedirectError> {
        let table = self.config.table();
        let Some((line, touched)) = transaction(&table, &self.installed, &desired) else {
            return Ok(false);
        };
        let questions = touched
            .iter()
            .map(|t| format!("list set inet {table} {}", t.set))
            .collect();
        let (errors, answers) = self.ask(line, questions).await?;
        let mut result = if errors.is_empty() {
            Ok(true)
        } else {
            Err(RedirectError::Transaction(errors))
        };
        for (touched, answer) in touched.iter().zip(&answers) {
            let read = self.read_back(touched, answer, &desired);
            if result.is_ok()
                && let Err(e) = read
            {
                result = Err(e);
            }
        }
        result
    }

    /// Notes what the kernel holds, and compares it with what it should hold.
    fn read_back(&mut self, touched: &TouchedSet, answer: &str, desired: &Desired) -> Result<(), RedirectError> {
        let found = parse_set(answer).map_err(RedirectError::Answer)?;
        let (name, family) = (touched.name, touched.family);
        let in_family = |set: &std::collections::BTreeSet<_>| {
            let elements = set
                .iter()
                .filter(|(a, _): &&super::sets::Element| IpFamily::of(a.ip()) == family);
            elements.copied().collect::<std::collections::BTreeSet<_>>()
        };
        let wanted = desired
            .named()
            .into_iter()
            .find(|(n, _)| *n == name)
            .map(|(_, s)| in_family(s));
        let wanted = wanted.unwrap_or_default();
        let result = if found == wanted {
            Ok(())
        } else {
            Err(RedirectError::ReadBack {
                set: name,
                family,
                wanted: wanted.len(),
                found: found.len(),
            })
        };
        for (installed_name, set) in self.installed.named_mut() {
            if installed_name == name {
                set.retain(|(address, _)| IpFamily::of(address.ip()) != family);
                set.extend(found.iter().copied());
            }
        }
        result
    }

    async fn lease(&mut self) -> Result<(), RedirectError> {
        let line = ruleset::lease_line(&self.config, &self.families);
        let question = format!("list set inet {} lease", self.config.table());
        let (errors, answers) = self.ask(line, vec![question]).await?;
        if !errors.is_empty() {
            return Err(RedirectError::Transaction(errors));
        }
        let answer: Value = parse_answer(answers.first())?;
        let held: Vec<&str> = objects(&answer, "set")
            .filter_map(|s| s.get("elem")?.as_array())
            .flatten()
            .filter_map(|e| e.get("elem")?.get("val")?.as_str())
            .collect();
        if self.families.iter().all(|f| held.contains(&lease_name(*f))) {
            Ok(())
        } else {
            Err(RedirectError::Lease)
        }
    }

    async fn counters(&mut self) -> Result<RedirectCounters, RedirectError> {
        let question = format!("list counters table inet {}", self.config.table());
        let (errors, answers) = self.ask(String::new(), vec![question]).await?;
        if !errors.is_empty() {
            return Err(RedirectError::Answer(errors));
        }
        let answer = parse_answer(answers.first())?;
        let read = |c: &Value| Some((c.get("name")?.as_str()?.to_owned(), c.get("packets")?.as_u64()?));
        let packets: BTreeMap<String, u64> = objects(&answer, "counter").filter_map(read).collect();
        if let Some((missing, _)) = COUNTERS.iter().find(|(name, _)| !packets.contains_key(*name)) {
            return Err(RedirectError::Answer(format!("nft's answer lacks counter {missing}")));
        }
        let of = |name: &str| packets.get(name).copied().unwrap_or_default();
        Ok(RedirectCounters {
            delivered: of("delivered"),
            diverted: of("diverted"),
            lease_expired: of("lease_expired"),
            no_socket: of("no_socket"),
            host_lease_expired: of("host_lease_expired"),
        })
    }

    async fn remove(self) -> Result<(), RedirectError> {
        let Link {
            mut child,
            stdin,
            mut replies,
        } = self.link;
        drop(stdin);
        let end = async {
            while replies.next_line().await?.is_some() {}
            child.wait().await
        };
        let status = timeout(REPLY_LIMIT, end)
            .await
            .map_err(|_| io::Error::other("it did not end in time"))??;
        if status.success() {
            Ok(())
        } else {
            Err(RedirectError::Holder(io::Error::other(format!(
                "it did not remove everything: {status}"
            ))))
        }
    }
}

fn parse_answer(text: Option<&String>) -> Result<Value, RedirectError> {
    let text = text.map(String::as_str).unwrap_or_default();
    serde_json::from_str(text).map_err(|e| RedirectError::Answer(format!("unreadable answer of nft: {e}")))
}
