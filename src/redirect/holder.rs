//! The holder: a child process that owns the kernel state of one instance's redirection and takes it away when the agent is
//! gone, however the agent went.
//!
//! It is the program itself, started as `nodeward holder`. It keeps an interactive nft whose netlink socket owns the table
//! (`flags owner`: the kernel removes the table with that socket), keeps the routing rules in place, and passes
//! transactions on. It ends when its standard input ends: only the agent holds the other end, close-on-exec, so this
//! happens the moment the agent dies. A parent-death signal guards against an end that was passed on by accident; it fires
//! when the *thread* that started the holder ends, so that must be a thread that lives as long as the agent.
//!
//! The holder never decides anything: what is in the sets and when the lease is renewed is the agent's business. If it is
//! killed, nft's standard input ends, nft ends, and the table goes; the routing rules stay, inert.
//!
//! Signals that mean "stop" to the agent (a terminal's interrupt, a service manager's SIGTERM to the whole group) are not
//! for the holder: while the agent drains, the table has to stay.

use super::config::RedirectConfig;
use super::nft::{InteractiveNft, first_error, our_tables};
use super::plan::Plan;
use super::protocol::{Failure, Reply, Request};
use super::routing::{Changes, Routing, ipv6_unavailable};
use super::ruleset;
use crate::model::IpFamily;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigSet, Signal};
use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::pipe;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

/// The hidden subcommand.
pub const SUBCOMMAND: &str = "holder";

/// The hidden subcommand that becomes the interactive nft.
const NFT_SUBCOMMAND: &str = "holder-nft";

/// Rules and routes are looked after at least this often, should a notification be missed.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Two restorations are at least this far apart, so that a quarrel with another program costs little.
const CHECK_APART: Duration = Duration::from_millis(100);

/// Longest request accepted, in bytes: two full address sets with room to spare.
const REQUEST_LIMIT: usize = 32 << 20;

/// Runs the holder if the command line asks for it. The first thing `main` does, before it starts threads or reads
/// configuration.
pub fn dispatch(mut arguments: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    let word = arguments.nth(1)?;
    let result = if word == SUBCOMMAND {
        run_holder(arguments.next())
    } else if word == NFT_SUBCOMMAND {
        become_nft(arguments.next())
    } else {
        return None;
    };
    Some(match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("nodeward holder: {e}");
            ExitCode::FAILURE
        }
    })
}

/// Replaces this process by nft. Blocked signals and the parent-death signal survive that, nft's own start would not set
/// them.
fn become_nft(program: Option<OsString>) -> io::Result<()> {
    let program = program.ok_or_else(|| io::Error::other("no nft program named"))?;
    set_pdeathsig(Signal::SIGKILL)?;
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        signals.add(signal);
    }
    signals.thread_block()?;
    let program = CString::new(program.into_encoded_bytes())?;
    nix::unistd::execvp(&program, &[program.as_c_str(), c"-j", c"-i"])?;
    Ok(())
}

fn run_holder(parent: Option<OsString>) -> io::Result<()> {
    set_pdeathsig(Signal::SIGUSR1)?;
    let parent = parent
        .and_then(|p| p.into_string().ok())
        .and_then(|p| p.parse::<i32>().ok());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut parent_died = signal(SignalKind::user_defined1())?;
        let _ignored = [
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
            signal(SignalKind::hangup())?,
            signal(SignalKind::quit())?,
        ];
        // The agent may have died before the signal was asked for.
        if parent.is_some_and(|p| nix::unistd::getppid().as_raw() != p) {
            return Ok(());
        }
        let stdin = io::stdin().as_fd().try_clone_to_owned()?;
        let stdout = io::stdout().as_fd().try_clone_to_owned()?;
        let mut requests = BufReader::new(pipe::Receiver::from_owned_fd(stdin)?);
        let mut agent = Agent(pipe::Sender::from_owned_fd(stdout)?);
        let Some(Request::Start(config)) = next_request(&mut requests).await? else {
            return Err(io::Error::other(
                "started without a configuration; this command is not for people",
            ));
        };
        let mut holder = match Holder::install(&config).await {
            Ok((holder, notes)) => {
                let families = holder.families.iter().map(|f| (*f).into()).collect();
                agent.send(&Reply::Ready { families, notes }).await?;
                holder
            }
            Err(failure) => return agent.send(&Reply::Failed(failure)).await,
        };
        let result = tokio::select! {
            result = holder.serve(&mut requests, &mut agent) => result,
            _ = parent_died.recv() => Ok(()),
        };
        let removed = holder.remove().await;
        result.and(removed)
    })
}

async fn next_request(requests: &mut BufReader<pipe::Receiver>) -> io::Result<Option<Request>> {
    let mut line = Vec::new();
    loop {
        let part = requests.fill_buf().await?;
        if part.is_empty() {
            return Ok(None); // The agent is gone, perhaps in the middle of a line.
        }
        let (taken, done) = match part.iter().position(|b| *b == b'\n') {
            Some(end) => (end + 1, true),
            None => (part.len(), false),
        };
        line.extend_from_slice(part.get(..taken).unwrap_or_default());
        requests.consume(taken);
        if line.len() > REQUEST_LIMIT {
            return Err(io::Error::other("a request longer than the limit"));
        }
        if done {
            return serde_json::from_slice(&line).map(Some).map_err(io::Error::other);
        }
    }
}

struct Agent(pipe::Sender);

impl Agent {
    async fn send(&mut self, reply: &Reply) -> io::Result<()> {
        let mut line = serde_json::to_vec(reply).map_err(io::Error::other)?;
        line.push(b'\n');
        self.0.write_all(&line).await
    }
}

struct Holder {
    nft: InteractiveNft,
    routing: Routing,
    changes: Changes,
    plan: Plan,
    families: Vec<IpFamily>,
    config: RedirectConfig,
}

impl Holder {
    /// Installs routes and rules, then the table. On failure nothing of ours is left.
    async fn install(config: &RedirectConfig) -> Result<(Self, Vec<String>), Failure> {
        config.validate().map_err(|e| Failure::Other(e.to_string()))?;
        let mut notes = Vec::new();
        let mut families = config.families();
        if config.ipv6
            && let Some(why) = ipv6_unavailable()
        {
            families.retain(|f| *f == IpFamily::V4);
            let note = format!("IPv6 is not redirected: {why}");
            if families.is_empty() {
                return Err(Failure::NoFamily(note));
            }
            notes.push(note);
        }
        let tables = our_tables(&config.nft).await.map_err(Failure::NoNft)?;
        if let Some(table) = tables.iter().find(|t| t.instance == config.instance) {
            return Err(if table.owned {
                Failure::AlreadyRunning
            } else {
                Failure::Leftover
            });
        }
        let other = |e: io::Error| Failure::Other(e.to_string());
        let routing = Routing::open().map_err(other)?;
        let changes = Changes::open().map_err(other)?;
        let plan = Plan::of(config);
        let result = async {
            routing.ensure(plan, &families).await.1.map_err(Failure::Routing)?;
            install_table(config, &families).await
        };
        match result.await {
            Ok(nft) => {
                let config = config.clone();
                Ok((
                    Self {
                        nft,
                        routing,
                        changes,
                        plan,
                        families,
                        config,
                    },
                    notes,
                ))
            }
            Err(failure) => {
                remove_routing(&routing, plan, &config.nft)
                    .await
                    .map_err(Failure::Other)?;
                Err(failure)
            }
        }
    }

    /// Serves the agent until it is gone or nft is.
    async fn serve(&mut self, requests: &mut BufReader<pipe::Receiver>, agent: &mut Agent) -> io::Result<()> {
        let mut tick = interval(CHECK_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut due: Option<Instant> = None;
        let mut not_before = Instant::now();
        // The request being read lives across turns of the loop: a change of routes must not cut it in two.
        let mut request = Box::pin(owned_request(requests));
        loop {
            let check = async move {
                match due {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                (result, requests) = &mut request => {
                    match result? {
                        None => return Ok(()),
                        Some(Request::Run { id, line, questions }) => {
                            let outcome = self.nft.run(&line, &questions).await?;
                            agent.send(&Reply::Done { id, errors: outcome.errors, answers: outcome.answers }).await?;
                        }
                        Some(Request::Start(_)) => return Err(io::Error::other("a second configuration")),
                    }
                    request = Box::pin(owned_request(requests));
                }
                status = self.nft.ended() => return Err(io::Error::other(format!("nft ended: {}", status?))),
                () = self.changes.removal(), if due.is_none() => due = Some(not_before.max(Instant::now())),
                _ = tick.tick() => due = due.or(Some(not_before.max(Instant::now()))),
                () = check => {
                    due = None;
                    not_before = Instant::now() + CHECK_APART;
                    let (restored, result) = self.routing.ensure(self.plan, &self.families).await;
                    if !restored.is_empty() {
                        agent.send(&Reply::Restored(restored.iter().map(ToString::to_string).collect())).await?;
                    }
                    if let Err(e) = result {
                        agent.send(&Reply::NotRestored(e)).await?;
                    }
                }
            }
        }
    }

    /// Table first: from then on nothing is marked, and rules and routes are inert.
    async fn remove(self) -> io::Result<()> {
        self.nft.stop().await?;
        remove_routing(&self.routing, self.plan, &self.config.nft)
            .await
            .map_err(io::Error::other)
    }
}

/// [`next_request`] with the reader handed through, so that the future can be kept and replaced.
async fn owned_request(
    requests: &mut BufReader<pipe::Receiver>,
) -> (io::Result<Option<Request>>, &mut BufReader<pipe::Receiver>) {
    (next_request(requests).await, requests)
}

async fn install_table(config: &RedirectConfig, families: &[IpFamily]) -> Result<InteractiveNft, Failure> {
    let other = |e: io::Error| Failure::Other(e.to_string());
    let mut command = std::process::Command::new(super::own_program());
    command.arg(NFT_SUBCOMMAND).arg(&config.nft);
    let mut nft = InteractiveNft::start(command).map_err(other)?;
    let line = ruleset::one_line(&ruleset::table(config, families));
    let question = format!("list set inet {} lease", config.table());
    let outcome = nft.run(&line, &[question]).await.map_err(other)?;
    if outcome.errors.contains("not permitted") {
        // The kernel's answer to a write into a table that another socket owns, and to missing rights.
        let tables = our_tables(&config.nft).await.map_err(Failure::NoNft)?;
        if tables.iter().any(|t| t.instance == config.instance) {
            return Err(Failure::AlreadyRunning);
        }
    }
    if !outcome.errors.is_empty() || outcome.answers.first().is_none_or(String::is_empty) {
        return Err(Failure::Refused(first_error(&outcome.errors)));
    }
    Ok(nft)
}

/// Removes rules and routes unless another live instance uses the same ones.
async fn remove_routing(routing: &Routing, plan: Plan, nft: &str) -> Result<(), String> {
    if plan_in_use(plan, nft).await? {
        return Ok(());
    }
    routing.remove(plan).await.map(drop)
}

/// Whether a live instance uses these rules or this routing table, by its table's comment. Instances whose comment cannot
/// be read count as users: an inert rule is harmless, a missing one is not.
async fn plan_in_use(plan: Plan, nft: &str) -> Result<bool, String> {
    let tables = our_tables(nft).await?;
    let mut live = tables.iter().filter(|t| t.owned);
    Ok(live.any(|t| Plan::from_comment(&t.comment).is_none_or(|other| other.overlaps(plan))))
}
