//! Hands tables to workers: one pointer swap, and an account of which generation each reader has seen.
//!
//! The publisher frees tables, never a reader: a retired table is kept until no reader holds it, so that dropping 500 000
//! endpoints never happens between two packets.

use super::Table;
use arc_swap::{ArcSwap, Cache};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a reader that is gone has "seen".
const GONE: u64 = u64::MAX;

/// The writing end, on the control thread.
#[derive(Debug)]
pub struct Publisher {
    table: Arc<ArcSwap<Table>>,
    seen: Vec<Arc<AtomicU64>>,
    /// Replaced tables that a reader may still hold; at most one per reader.
    retired: Vec<Arc<Table>>,
}

impl Publisher {
    /// Publishes a first table.
    pub fn new(table: Arc<Table>) -> Self {
        Self {
            table: Arc::new(ArcSwap::new(table)),
            seen: Vec::new(),
            retired: Vec::new(),
        }
    }

    /// A new reader; its first [`TableReader::load`] sees the current table.
    pub fn reader(&mut self) -> TableReader {
        self.seen.retain(|s| s.load(Ordering::Acquire) != GONE);
        let seen = Arc::new(AtomicU64::new(0));
        self.seen.push(seen.clone());
        TableReader {
            cache: Cache::new(self.table.clone()),
            seen,
            generation: 0,
        }
    }

    /// Makes `table` the current one. Readers see it at their next [`TableReader::load`]; waking them is up to the caller.
    pub fn publish(&mut self, table: Arc<Table>) {
        self.retired.push(self.table.swap(table));
        self.collect();
    }

    /// The current table.
    pub fn current(&self) -> Arc<Table> {
        self.table.load_full()
    }

    /// The generation that every reader has seen; the current one where there are no readers. A change is applied when this
    /// reaches its table's generation.
    pub fn applied(&self) -> u64 {
        let seen = self.seen.iter().map(|s| s.load(Ordering::Acquire)).min();
        seen.unwrap_or(GONE).min(self.table.load().generation)
    }

    /// Frees replaced tables that no reader holds any more and says how many are still held. Called by
    /// [`Publisher::publish`]; worth calling once more when [`Publisher::applied`] has caught up.
    pub fn collect(&mut self) -> usize {
        self.retired.retain(|t| Arc::strong_count(t) > 1);
        self.retired.len()
    }
}

/// A worker's end. Loading costs one comparison of pointers while nothing changed.
#[derive(Debug)]
pub struct TableReader {
    cache: Cache<Arc<ArcSwap<Table>>, Arc<Table>>,
    seen: Arc<AtomicU64>,
    generation: u64,
}

impl TableReader {
    /// The current table, and the word to the publisher that it has been seen.
    pub fn load(&mut self) -> &Arc<Table> {
        let table = self.cache.load();
        if table.generation != self.generation {
            self.generation = table.generation;
            self.seen.store(table.generation, Ordering::Release);
        }
        table
    }
}

impl Drop for TableReader {
    fn drop(&mut self) {
        self.seen.store(GONE, Ordering::Release);
    }
}
