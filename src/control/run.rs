//! The control thread's loop and end.

use super::agent::Agent;
use super::lease::{self, Health, Prober};
use super::redirection::Redirection;
use super::report;
use super::start::RunError;
use super::vips::{Action, Vips};
use crate::admin::AdminSocket;
use crate::config::Config;
use crate::health::FailingEndpoints;
use crate::model::{Change, NodeName, ObjectName, Service};
use crate::net::{socket, watch};
use crate::redirect::verdict::{self, Severity};
use crate::redirect::{Marks, RedirectCounters, check_vip};
use crate::source::file::FileSource;
use crate::store::Changes;
use crate::table::publish::Publisher;
use crate::table::{Table, TableBuilder, ViewInputs, Vip};
use crate::topology::NodeContext;
use crate::worker::{Clock, Command, Handle};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant as TokioInstant, MissedTickBehavior, interval, sleep, sleep_until};

/// How long workers may take to take a table or a socket before it is said in the log.
const WORKER_PATIENCE: Duration = Duration::from_secs(1);
/// Before a VIP that could not be opened is tried again.
const OPEN_AGAIN: u64 = 5_000;
/// What a draining VIP waits beyond the life of a query, for the answers that come last.
const DRAIN_MARGIN: u64 = 500;
/// How often expired health records are swept.
const SWEEP: Duration = Duration::from_secs(10);
/// How often the redirection's counters are read.
const BYPASS: Duration = Duration::from_secs(1);

/// Runs the agent until it is told to stop.
///
/// # Errors
/// See [`RunError`]; nothing stays installed.
pub fn run(config: Config, file: &Path) -> Result<(), RunError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| RunError::System("starting the control thread's runtime", e))?;
    runtime.block_on(async {
        let control = Control::start(config, file).await?;
        control.run().await
    })
}

/// The control thread's state.
pub(super) struct Control {
    pub(super) config: Config,
    pub(super) node: NodeName,
    pub(super) agent: Arc<Agent>,
    pub(super) source: FileSource,
    pub(super) builder: TableBuilder,
    pub(super) publisher: Publisher,
    pub(super) workers: Vec<Handle>,
    pub(super) vips: Vips,
    pub(super) redirection: Option<Redirection>,
    /// The redirection's counters when they were last read.
    pub(super) bypassed: RedirectCounters,
    pub(super) prober: Prober,
    pub(super) failing: Arc<FailingEndpoints>,
    pub(super) clock: Clock,
    pub(super) marks: Marks,
    pub(super) admin: Arc<AdminSocket>,
    pub(super) stop_admin: tokio::sync::oneshot::Sender<()>,
}

impl Control {
    async fn run(mut self) -> Result<(), RunError> {
        let system = |what| move |e| RunError::System(what, e);
        let mut terminate = signal(SignalKind::terminate()).map_err(system("waiting for SIGTERM"))?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(system("waiting for SIGINT"))?;
        let mut hangup = signal(SignalKind::hangup()).map_err(system("waiting for SIGHUP"))?;
        let watched = self
            .source
            .as_fd()
            .try_clone_to_owned()
            .map_err(system("watching the source"))?;
        let changes = watch::readable(watched).map_err(system("watching the source"))?;
        let mut probes = interval(lease::INTERVAL);
        probes.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut sweep = interval(SWEEP);
        let mut bypass = interval(BYPASS);
        self.first_probe().await;
        self.load(Instant::now()).await;
        // First event of a batch, and when the batch is taken.
        let mut batch: Option<(Instant, TokioInstant)> = None;
        loop {
            let batch_at = batch.map(|(_, at)| at);
            let due = self.vips.next_due().map(|at| self.in_millis(at));
            tokio::select! {
                ready = changes.readable() => {
                    let mut ready = ready.map_err(system("watching the source"))?;
                    self.source.drain();
                    ready.clear_ready();
                    batch = Some(self.extend_batch(batch));
                }
                () = at(batch_at) => {
                    if let Some((first, _)) = batch.take() {
                        self.load(first).await;
                    }
                }
                _ = probes.tick() => self.probe().await,
                readable = self.prober.readable() => {
                    readable.map_err(system("reading probes"))?;
                    self.prober.receive(self.clock.now());
                }
                event = next_event(&mut self.redirection) => {
                    if let Some(redirection) = &mut self.redirection {
                        redirection.event(event, &self.agent.metrics);
                        self.settle().await;
                    }
                }
                () = at(due) => self.settle().await,
                _ = sweep.tick() => {
                    self.failing.sweep(self.clock.now());
                    self.publisher.collect();
                    // What inotify cannot see (a folder replaced through a link above it) is noticed here.
                    self.load(Instant::now()).await;
                }
                _ = bypass.tick() => self.look_at_bypass().await,
                _ = hangup.recv() => tracing::warn!("SIGHUP: the configuration is read at the start only; restart to change it"),
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
            }
            if let Some(index) = self.workers.iter().position(Handle::is_finished) {
                tracing::error!(
                    worker = index,
                    "a worker ended by itself; ending the process so that kube-proxy serves"
                );
                std::process::abort();
            }
        }
        self.shut_down(&mut terminate, &mut interrupt).await;
        Ok(())
    }

    fn in_millis(&self, at: u64) -> TokioInstant {
        TokioInstant::now() + Duration::from_millis(at.saturating_sub(self.clock.now()))
    }

    /// One more event: the batch waits for a pause as long as the window, but never beyond the limit.
    fn extend_batch(&self, batch: Option<(Instant, TokioInstant)>) -> (Instant, TokioInstant) {
        let first = batch.map_or_else(Instant::now, |(first, _)| first);
        let limit = TokioInstant::from_std(first + crate::config::MAX_BATCH_DELAY);
        (first, (TokioInstant::now() + self.config.batch_window).min(limit))
    }

    /// Reads what changed and brings it to the workers. `since` is when the first event arrived.
    async fn load(&mut self, since: Instant) {
        let changes: Vec<Change> = self.source.load();
        report::source(self);
        let result = {
            let mut store = self.agent.store.write().unwrap_or_else(PoisonError::into_inner);
            store.apply(changes)
        };
        if !result.is_empty()
            && let Some(table) = self.next_table(&result)
        {
            let generation = table.generation;
            self.release(&table).await;
            self.publisher.publish(table);
            self.workers.iter().for_each(Handle::wake);
            self.wait_for_workers(|c| c.publisher.applied() >= generation, "a new table")
                .await;
            self.publisher.collect();
            self.agent.metrics.apply_duration.observe(since.elapsed().as_secs_f64());
            self.agent.metrics.tables_published.inc();
            self.forget_counters(&result);
        }
        self.settle().await;
    }

    /// VIPs that the next table does not serve leave `svc` before it is published, so that no query meets a worker that has
    /// nobody to ask: kube-proxy takes it.
    async fn release(&mut self, next: &Table) {
        let wanted = Vips::wanted(next, |_| true);
        let kept: Vec<Vip> = self
            .vips
            .serving()
            .filter(|v| wanted.binary_search(v).is_ok())
            .collect();
        if kept.len() == self.vips.serving().count() {
            return;
        }
        self.vips.release_all_but(&kept, self.clock.now() + self.drain());
        if let Some(redirection) = &mut self.redirection {
            redirection.apply(&self.vips, &self.agent.metrics).await;
        }
    }

    /// How long a released VIP keeps its sockets, milliseconds.
    fn drain(&self) -> u64 {
        self.config.udp.dns_timeout.as_millis() as u64 + DRAIN_MARGIN
    }

    /// The table after these changes; `None` where it is the same.
    fn next_table(&mut self, changes: &Changes) -> Option<Arc<Table>> {
        let store = self.agent.store.read().unwrap_or_else(PoisonError::into_inner);
        let levels = self.config.topology.levels.clone();
        // Other nodes' labels matter only for levels that endpoints do not carry themselves.
        let other_nodes = levels.iter().any(|l| &*l.label != crate::model::ZONE_LABEL);
        let all = changes.nodes.contains(&self.node) || (other_nodes && !changes.nodes.is_empty());
        let nodes: HashMap<_, _> = match other_nodes {
            true => store.nodes().iter().map(|(n, v)| (n.clone(), v.clone())).collect(),
            false => HashMap::new(),
        };
        let context = NodeContext {
            name: self.node.clone(),
            node: store.node(&self.node).cloned(),
            levels,
            nodes: Arc::new(nodes),
        };
        let select = &self.config.select;
        let inputs = ViewInputs {
            node: &context,
            config: &self.config.topology,
            selected: &|service: &Service| select.selects(service).taken(),
        };
        let names: Vec<ObjectName> = match all {
            true => {
                let known = store.services().map(|(n, _)| n.clone());
                known.chain(changes.services.iter().cloned()).collect()
            }
            false => changes.services.iter().cloned().collect(),
        };
        self.builder.refresh(&store, names.iter(), inputs)
    }

    /// Drops the counters of Services that are gone; those only released keep theirs.
    fn forget_counters(&self, changes: &Changes) {
        let store = self.agent.store.read().unwrap_or_else(PoisonError::into_inner);
        let gone = |name: &ObjectName| store.get(name).is_none_or(|s| s.service().is_none());
        if changes.services.iter().any(gone) {
            self.agent.registry.retain(|key, _| !gone(&key.service));
        }
    }

    /// Waits until every worker has done something; says so when it takes too long.
    async fn wait_for_workers(&mut self, done: impl Fn(&Self) -> bool, what: &str) {
        let deadline = Instant::now() + WORKER_PATIENCE;
        while !done(self) {
            if Instant::now() >= deadline {
                tracing::warn!("a worker has not taken {what} within {WORKER_PATIENCE:?}");
                return;
            }
            sleep(Duration::from_micros(250)).await;
        }
    }

    /// Opens and closes VIPs as the table wants, and tells the redirection.
    async fn settle(&mut self) {
        let families = self.redirection.as_ref().map(|r| r.families().to_vec());
        let table = self.publisher.current();
        let wanted = Vips::wanted(&table, |vip| {
            let family = crate::model::IpFamily::of(vip.address.ip());
            families.as_ref().is_none_or(|f| f.contains(&family))
        });
        let now = self.clock.now();
        for action in self.vips.reconcile(&wanted, now, self.drain()) {
            match action {
                Action::Open(vip) => self.open(vip, now),
                Action::Close(vip) => {
                    for worker in &mut self.workers {
                        worker.send(Command::RemoveVip(vip));
                    }
                }
            }
        }
        let opening = self.vips.any_opening();
        if opening {
            self.wait_for_workers(|c| c.workers.iter().all(Handle::is_caught_up), "a VIP's socket")
                .await;
            if self.workers.iter().all(Handle::is_caught_up) {
                self.vips.opened();
            }
        }
        let fresh = self.prober.health(self.clock.now()) == Health::Fresh;
        if let Some(redirection) = &mut self.redirection {
            redirection.apply(&self.vips, &self.agent.metrics).await;
            // A first VIP need not wait for the next round of probes; changes of endpoints need no lease of their own.
            if opening && fresh {
                redirection.renew_lease(&self.vips, &self.agent.metrics).await;
            }
        }
        report::all(self);
    }

    /// Makes one socket per worker for a VIP and hands them out; all or none.
    fn open(&mut self, vip: Vip, now: u64) {
        let receive_buffer = self.config.udp.receive_buffer as usize;
        let mark = match self.redirection {
            Some(_) => self.marks.listener_socket,
            None => 0,
        };
        if let Some(redirection) = &self.redirection {
            // One address that cannot be redirected must not keep the others from it.
            if let Err(error) = check_vip(&(vip.address, vip.protocol), redirection.families()) {
                tracing::error!(vip = %vip.address, "{error}");
                return self.vips.refuse(vip, error.to_string(), now + OPEN_AGAIN);
            }
            let local = verdict::local_vips(&[vip.address.ip()]);
            if let Some(finding) = local.iter().find(|f| f.severity == Severity::Refuse) {
                tracing::error!(vip = %vip.address, "{finding}");
                return self.vips.refuse(vip, finding.to_string(), now + OPEN_AGAIN);
            }
        }
        let sockets: io::Result<Vec<OwnedFd>> = (0..self.workers.len())
            .map(|_| socket::vip_udp(vip.address, mark, receive_buffer))
            .collect();
        match sockets {
            Ok(sockets) => {
                for (worker, socket) in self.workers.iter_mut().zip(sockets) {
                    worker.send(Command::AddVip { vip, socket });
                }
            }
            Err(error) => {
                let reason = report::open_error(vip, &error);
                tracing::error!(vip = %vip.address, "{reason}");
                self.vips.refuse(vip, reason, now + OPEN_AGAIN);
            }
        }
    }

    /// Traffic of taken services that kube-proxy got is never silent: counted, logged, told by `status`.
    async fn look_at_bypass(&mut self) {
        let Some(redirection) = &self.redirection else {
            return;
        };
        let Some(counters) = redirection.counters().await else {
            return;
        };
        let before = std::mem::replace(&mut self.bypassed, counters);
        if report::bypass(&self.agent, before, counters) {
            report::all(self);
        }
    }

    /// Waits for the first probes, so that the lease can be had as soon as the first VIP serves.
    async fn first_probe(&mut self) {
        self.prober.send(self.clock.now()).await;
        let deadline = Instant::now() + WORKER_PATIENCE;
        while self.prober.health(self.clock.now()) != Health::Fresh && Instant::now() < deadline {
            // Whether it became readable or the wait ended, the answers are looked for.
            let _ = tokio::time::timeout(Duration::from_millis(10), self.prober.readable()).await;
            self.prober.receive(self.clock.now());
        }
    }

    /// A round of probes: renews the lease while every worker turns, ends the process when one hangs.
    async fn probe(&mut self) {
        let now = self.clock.now();
        self.prober.receive(now);
        match self.prober.health(now) {
            Health::Fresh => {
                self.agent.update_condition(|c| c.live = Ok(()));
                if let Some(redirection) = &mut self.redirection {
                    redirection.renew_lease(&self.vips, &self.agent.metrics).await;
                }
            }
            Health::Stale(worker) => {
                let words = format!("worker {worker} has not turned for a second");
                self.agent.update_condition(|c| c.live = Err(words));
            }
            Health::Hung(worker) => {
                tracing::error!(worker, "a worker hangs; ending the process so that kube-proxy serves");
                std::process::abort();
            }
        }
        self.prober.send(self.clock.now()).await;
    }

    /// Out of the sets first, so that kube-proxy takes what is new; then the answers still under way; then everything goes.
    async fn shut_down(
        mut self,
        terminate: &mut tokio::signal::unix::Signal,
        interrupt: &mut tokio::signal::unix::Signal,
    ) {
        tracing::info!("stopping: kube-proxy takes new flows, answers under way are still delivered");
        self.agent.update_condition(|c| c.ready = Err("stopping".to_owned()));
        if let Some(redirection) = &mut self.redirection {
            redirection.release().await;
        }
        let deadline = Instant::now() + self.config.udp.dns_timeout;
        // Datagrams that passed the rules before they changed are in the sockets within moments.
        let settled = Instant::now() + Duration::from_millis(50);
        let outstanding = |c: &Self| {
            c.agent
                .registry
                .workers()
                .iter()
                .map(|w| w.outstanding.get())
                .sum::<u64>()
        };
        while Instant::now() < deadline && (Instant::now() < settled || outstanding(&self) > 0) {
            self.workers.iter().for_each(Handle::wake);
            tokio::select! {
                () = sleep(Duration::from_millis(5)) => {}
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
            }
        }
        if let Some(redirection) = self.redirection.take() {
            redirection.remove().await;
        }
        for worker in self.workers {
            worker.stop();
        }
        let _ = self.stop_admin.send(());
        drop(self.admin);
        tracing::info!("stopped");
    }
}

/// Waits until a time, or for ever.
async fn at(time: Option<TokioInstant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

async fn next_event(redirection: &mut Option<Redirection>) -> Option<crate::redirect::RedirectEvent> {
    match redirection {
        Some(redirection) => redirection.next_event().await,
        None => std::future::pending().await,
    }
}
