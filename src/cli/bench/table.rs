//! `nodeward bench table`: from the API's JSON to a table that every worker has seen, at size.
//!
//! The real path on one thread: parse → trim → store → view → table → publish, with reader threads that acknowledge as
//! workers do. `docs/SCALE.md` says what each figure means.

use super::input::{self, Size};
use crate::cli::{CliError, CliResult, Output, print_as};
use crate::model::{Change, Interner, Node, Protocol, ZONE_LABEL};
use crate::source::manifest::{Format, Object, parse};
use crate::store::Store;
use crate::table::publish::Publisher;
use crate::table::{TableBuilder, ViewInputs, Vip};
use crate::topology::{NodeContext, TopologyConfig};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Largest cluster that is made up: 16 Mi endpoints have distinct addresses.
const MAX_ENDPOINTS: usize = 4_000_000;

/// Load a made-up cluster through the real path and measure time and memory.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  nodeward bench table --services 5000 --endpoints 100 -o json")]
pub struct Args {
    /// Services in the cluster
    #[arg(long, default_value_t = 5000)]
    services: usize,
    /// Endpoints of each Service
    #[arg(long, default_value_t = 100)]
    endpoints: usize,
    /// Ports of each Service (each endpoint is in the table once per port)
    #[arg(long, default_value_t = 1)]
    ports: usize,
    /// Threads that read the table as workers do
    #[arg(long, default_value_t = 2)]
    readers: usize,
    /// One-slice changes to apply
    #[arg(long, default_value_t = 2000)]
    changes: usize,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// What was measured.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Services loaded.
    pub services: usize,
    /// Endpoints loaded, each Service's own.
    pub endpoints: usize,
    /// Ports of each Service.
    pub ports: usize,
    /// Reader threads.
    pub readers: usize,
    /// Size of the JSON.
    pub input_mb: f64,
    /// From the first byte parsed until every reader saw the table.
    pub load_seconds: f64,
    /// Resident memory of the whole process after the load, input freed.
    pub resident_mb: f64,
    /// Growth of resident memory by the load, per endpoint.
    pub bytes_per_endpoint: f64,
    /// Highest resident memory up to the end of the load; includes the whole input.
    pub peak_mb: f64,
    /// One slice changed: from its bytes to the last reader's acknowledgement.
    pub apply_p50_ms: f64,
    /// See `apply_p50_ms`.
    pub apply_p99_ms: f64,
    /// The part of it from the store's changes to the new table.
    pub refresh_p50_ms: f64,
    /// All views and the whole table built anew from the store.
    pub full_rebuild_ms: f64,
    /// Looking a random VIP up and picking one of its endpoints.
    pub lookup_ns: f64,
    /// Resident memory after all changes and rebuilds.
    pub resident_after_changes_mb: f64,
}

pub fn command(args: &Args) -> CliResult {
    let report = run(args)?;
    print_as(args.output, &report, text)?;
    Ok(true)
}

fn text(r: &Report) -> String {
    format!(
        "{} Services, {} endpoints, {} port(s) each, {:.0} MB of JSON\n\
         loaded in             {:>9.2} s\n\
         resident              {:>9.1} MB ({:.0} bytes per endpoint), peak {:.0} MB with the input\n\
         one slice applied     {:>9.3} ms p50, {:.3} ms p99, by {} readers\n\
         of this, table        {:>9.3} ms p50; full rebuild {:.1} ms\n\
         look-up and pick      {:>9.1} ns\n\
         resident afterwards   {:>9.1} MB\n",
        r.services,
        r.endpoints,
        r.ports,
        r.input_mb,
        r.load_seconds,
        r.resident_mb,
        r.bytes_per_endpoint,
        r.peak_mb,
        r.apply_p50_ms,
        r.apply_p99_ms,
        r.readers,
        r.refresh_p50_ms,
        r.full_rebuild_ms,
        r.lookup_ns,
        r.resident_after_changes_mb,
    )
}

/// Runs the measurement.
///
/// # Errors
/// Sizes out of range; memory figures that cannot be read; made-up input that does not load (a defect).
pub fn run(args: &Args) -> Result<Report, CliError> {
    let total = args.services.saturating_mul(args.endpoints);
    if total == 0 || total > MAX_ENDPOINTS || !(1..=100).contains(&args.ports) || args.readers == 0 || args.changes == 0
    {
        return Err(CliError::usage(format!(
            "expected --services × --endpoints from 1 to {MAX_ENDPOINTS}, --ports from 1 to 100, --readers and --changes of at least 1"
        )));
    }
    let size = Size {
        services: args.services,
        endpoints: args.endpoints,
        ports: args.ports,
    };
    let empty = memory("VmRSS:")?;
    let pages: Vec<Vec<u8>> = input::service_pages(size).chain(input::slice_pages(size)).collect();
    let input_bytes: usize = pages.iter().map(Vec::len).sum();

    let mut agent = Agent::new(args.readers);
    let start = Instant::now();
    agent.load(&pages)?;
    let load_seconds = start.elapsed().as_secs_f64();
    let peak = memory("VmHWM:")?;
    drop(pages);
    agent.publisher.collect();
    let resident = memory("VmRSS:")?;
    agent.check(size)?;

    let (apply, refresh) = agent.apply_changes(size, args.changes)?;
    let full_rebuild_ms = agent.full_rebuild_ms(size)?;
    let lookup_ns = agent.lookup_ns(size)?;
    Ok(Report {
        services: size.services,
        endpoints: total,
        ports: size.ports,
        readers: args.readers,
        input_mb: mb(input_bytes),
        load_seconds,
        resident_mb: mb(resident),
        bytes_per_endpoint: resident.saturating_sub(empty) as f64 / total as f64,
        peak_mb: mb(peak),
        apply_p50_ms: quantile(&apply, 0.5),
        apply_p99_ms: quantile(&apply, 0.99),
        refresh_p50_ms: quantile(&refresh, 0.5),
        full_rebuild_ms,
        lookup_ns,
        resident_after_changes_mb: mb(memory("VmRSS:")?),
    })
}

/// The control thread's part of the agent, and readers in the workers' place.
struct Agent {
    interner: Interner,
    store: Store,
    builder: TableBuilder,
    node: NodeContext,
    config: TopologyConfig,
    publisher: Publisher,
    readers: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
}

impl Agent {
    fn new(readers: usize) -> Self {
        let config = TopologyConfig::default();
        let name: Arc<str> = input::node_name(0).into();
        let builder = TableBuilder::new();
        let mut publisher = Publisher::new(builder.table().clone());
        let stop = Arc::new(AtomicBool::new(false));
        let readers = (0..readers)
            .map(|_| {
                let (mut reader, stop) = (publisher.reader(), stop.clone());
                std::thread::spawn(move || {
                    // As a worker: sleeps in the kernel, is woken, looks at the table.
                    while !stop.load(Ordering::Acquire) {
                        black_box(reader.load());
                        std::thread::park_timeout(Duration::from_millis(100));
                    }
                })
            })
            .collect();
        Self {
            interner: Interner::default(),
            store: Store::new(),
            builder,
            node: NodeContext {
                node: Some(Arc::new(Node {
                    name: name.clone(),
                    labels: [(ZONE_LABEL.into(), input::zone(0).into())].into(),
                })),
                name,
                levels: config.levels.clone(),
                nodes: Arc::default(),
            },
            config,
            publisher,
            readers,
            stop,
        }
    }

    fn parse(&mut self, bytes: &[u8]) -> Result<impl Iterator<Item = Change> + use<>, CliError> {
        let manifest = parse(bytes, Format::Json, &mut self.interner).map_err(CliError::failed)?;
        Ok(manifest.objects.into_iter().map(Object::into_change))
    }

    /// The whole cluster as one batch.
    fn load(&mut self, pages: &[Vec<u8>]) -> Result<(), CliError> {
        let mut batch = Vec::new();
        for page in pages {
            batch.extend(self.parse(page)?);
        }
        let changes = self.store.apply(batch);
        self.refresh(&changes.services);
        self.publish();
        Ok(())
    }

    fn refresh<'n>(&mut self, names: impl IntoIterator<Item = &'n crate::model::ObjectName>) -> bool {
        let inputs = ViewInputs {
            node: &self.node,
            config: &self.config,
            selected: &|_| true,
        };
        self.builder.refresh(&self.store, names, inputs).is_some()
    }

    /// Publishes, wakes the readers and waits until the last one has seen the table.
    fn publish(&mut self) {
        let table = self.builder.table().clone();
        let generation = table.generation;
        self.publisher.publish(table);
        self.readers.iter().for_each(|r| r.thread().unpark());
        while self.publisher.applied() < generation {
            std::thread::yield_now();
        }
    }

    /// The table holds what was made up.
    fn check(&self, size: Size) -> Result<(), CliError> {
        let table = self.builder.table();
        let endpoints: usize = table.iter().map(|e| e.endpoints.len()).sum();
        let expected = size.services * size.endpoints * size.ports;
        if table.len() != size.services * size.ports || endpoints != expected {
            return Err(CliError::failed(format!(
                "defect: {endpoints} endpoints in the table instead of {expected}"
            )));
        }
        Ok(())
    }

    /// One-slice changes of random Services: milliseconds each for the whole way, and for the table alone. Sorted.
    fn apply_changes(&mut self, size: Size, count: usize) -> Result<(Vec<f64>, Vec<f64>), CliError> {
        let mut random = SmallRng::seed_from_u64(1);
        let (mut whole, mut table) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for change in 1..=count {
            let service = below(&mut random, size.services);
            let slice = below(&mut random, size.slices());
            let bytes = input::changed_slice(size, service, slice, change);
            let start = Instant::now();
            let batch = self.parse(&bytes)?;
            let changes = self.store.apply(batch);
            let parsed = Instant::now();
            let changed = self.refresh(&changes.services);
            table.push(milliseconds(parsed));
            self.publish();
            whole.push(milliseconds(start));
            if !changed {
                return Err(CliError::failed(format!(
                    "defect: change {change} of service-{service} made no table"
                )));
            }
        }
        whole.sort_unstable_by(f64::total_cmp);
        table.sort_unstable_by(f64::total_cmp);
        Ok((whole, table))
    }

    /// Median of five.
    fn full_rebuild_ms(&mut self, size: Size) -> Result<f64, CliError> {
        let names: Vec<_> = self.store.services().map(|(name, _)| name.clone()).collect();
        let mut times = Vec::new();
        for _ in 0..5 {
            let kept = std::mem::take(&mut self.builder);
            let start = Instant::now();
            self.refresh(&names);
            times.push(milliseconds(start));
            self.check(size)?;
            self.builder = kept;
        }
        times.sort_unstable_by(f64::total_cmp);
        Ok(quantile(&times, 0.5))
    }

    /// Nanoseconds per look-up and pick, as a worker does it: current table, entry of the VIP, one endpoint.
    fn lookup_ns(&mut self, size: Size) -> Result<f64, CliError> {
        const ROUNDS: u32 = 5_000_000;
        let mut reader = self.publisher.reader();
        let mut random = SmallRng::seed_from_u64(2);
        let mut found = 0;
        let start = Instant::now();
        for _ in 0..ROUNDS {
            let vip = Vip {
                address: (
                    input::cluster_ip(below(&mut random, size.services)),
                    input::port(below(&mut random, size.ports)),
                )
                    .into(),
                protocol: Protocol::Tcp,
            };
            let entry = reader.load().get(black_box(&vip));
            let picked = entry.and_then(|e| e.pick(random.next_u64(), |e| black_box(e).port() != 0));
            found += u32::from(black_box(picked).is_some());
        }
        let elapsed = start.elapsed();
        if found != ROUNDS {
            return Err(CliError::failed(format!(
                "defect: {found} of {ROUNDS} look-ups found an endpoint"
            )));
        }
        Ok(elapsed.as_nanos() as f64 / f64::from(ROUNDS))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        for reader in self.readers.drain(..) {
            reader.thread().unpark();
            // A reader that panicked has said so.
            let _ = reader.join();
        }
    }
}

fn below(random: &mut SmallRng, n: usize) -> usize {
    ((u128::from(random.next_u64()) * n as u128) >> 64) as usize
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

fn quantile(sorted: &[f64], q: f64) -> f64 {
    let index = (sorted.len() as f64 * q) as usize;
    sorted
        .get(index.min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or(f64::NAN)
}

fn mb(bytes: usize) -> f64 {
    bytes as f64 / 1e6
}

/// A figure of `/proc/self/status`, in bytes.
fn memory(key: &str) -> Result<usize, CliError> {
    let status = std::fs::read_to_string("/proc/self/status").map_err(CliError::failed)?;
    let value = status.lines().find_map(|l| l.strip_prefix(key));
    let kib: Option<usize> = value.and_then(|v| v.trim().strip_suffix(" kB")?.trim().parse().ok());
    kib.map(|k| k * 1024)
        .ok_or_else(|| CliError::failed(format!("/proc/self/status has no {key}")))
}
