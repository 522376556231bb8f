//! The task behind the handle: it alone talks to the holder and keeps the record of what is installed.

use super::client::RedirectCounters;
use super::config::RedirectConfig;
use super::error::{RedirectError, RedirectEvent};
use super::protocol::{Reply, Request};
use super::ruleset::{self, COUNTERS, lease_name};
use super::sets::{Desired, Element, TouchedSet, objects, parse_set, transaction};
use crate::model::IpFamily;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
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
pub(super) const REPLY_LIMIT: Duration = Duration::from_secs(15);

/// What the handle asks for.
pub(super) enum Call {
    Apply(Box<Desired>, oneshot::Sender<Result<bool, RedirectError>>),
    ReleaseAll(oneshot::Sender<Result<bool, RedirectError>>),
    Lease(oneshot::Sender<Result<(), RedirectError>>),
    Counters(oneshot::Sender<Result<RedirectCounters, RedirectError>>),
    Remove(oneshot::Sender<Result<(), RedirectError>>),
}

/// The holder process and the pipes to it.
pub(super) struct Link {
    child: Child,
    /// The only write end; its closing is what ends the holder.
    stdin: ChildStdin,
    replies: Lines<BufReader<ChildStdout>>,
}

impl Link {
    pub(super) fn start(program: &Path) -> io::Result<Self> {
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

    /// The holder's process id; 0 once it was waited for.
    pub(super) fn pid(&self) -> u32 {
        self.child.id().unwrap_or_default()
    }

    pub(super) async fn send(&mut self, request: &Request) -> io::Result<()> {
        let mut line = serde_json::to_vec(request).map_err(io::Error::other)?;
        line.push(b'\n');
        self.stdin.write_all(&line).await
    }

    pub(super) async fn receive(&mut self) -> io::Result<Option<Reply>> {
        match self.replies.next_line().await? {
            None => Ok(None),
            Some(line) => serde_json::from_str(&line).map(Some).map_err(io::Error::other),
        }
    }
}

pub(super) struct Actor {
    link: Link,
    config: RedirectConfig,
    families: Vec<IpFamily>,
    /// What the sets hold, as last read back.
    installed: Desired,
    events: mpsc::Sender<RedirectEvent>,
    next_id: u64,
}

impl Actor {
    /// An actor for a freshly installed, empty table.
    pub(super) fn new(
        link: Link,
        config: RedirectConfig,
        families: Vec<IpFamily>,
        events: mpsc::Sender<RedirectEvent>,
    ) -> Self {
        Self {
            link,
            config,
            families,
            installed: Desired::default(),
            events,
            next_id: 0,
        }
    }

    /// Ends when the handle is dropped, when asked to remove everything, or when the holder is gone.
    pub(super) async fn run(mut self, mut calls: mpsc::Receiver<Call>) {
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
        let in_family = |set: &BTreeSet<Element>| {
            let elements = set.iter().filter(|(a, _)| IpFamily::of(a.ip()) == family);
            elements.copied().collect::<BTreeSet<Element>>()
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
