//! What the admin server sees of the agent. The control thread writes it, admin threads read it.

use crate::admin::{self, AgentView, Query, QueryError, Question};
use crate::model::NodeName;
use crate::store::Store;
use crate::telemetry::Registry;
use crate::telemetry::metrics::ControlMetrics;
use crate::telemetry::status::Status;
use crate::topology::TopologyConfig;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

/// Health and readiness: `Err` says what is missing.
#[derive(Clone, Debug)]
pub struct Condition {
    /// Every worker turns.
    pub live: Result<(), String>,
    /// The first state is complete and the redirection is in place.
    pub ready: Result<(), String>,
}

/// The shared part of the agent.
pub struct Agent {
    /// Own node.
    pub node: NodeName,
    /// Counters.
    pub registry: Arc<Registry>,
    /// The control thread's metrics.
    pub metrics: ControlMetrics,
    /// What ranking depends on.
    pub topology: TopologyConfig,
    /// The cluster state. Written in one short step per batch of changes.
    pub store: RwLock<Store>,
    status: Mutex<Status>,
    condition: Mutex<Condition>,
    started: Instant,
}

impl Agent {
    /// An agent that has nothing yet.
    pub fn new(node: NodeName, registry: Arc<Registry>, topology: TopologyConfig, status: Status) -> Self {
        Self {
            node,
            registry,
            metrics: ControlMetrics::default(),
            topology,
            store: RwLock::new(Store::new()),
            status: Mutex::new(status),
            condition: Mutex::new(Condition {
                live: Ok(()),
                ready: Err("starting".to_owned()),
            }),
            started: Instant::now(),
        }
    }

    /// Changes the status.
    pub fn update_status(&self, change: impl FnOnce(&mut Status)) {
        change(&mut self.status.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Changes health and readiness.
    pub fn update_condition(&self, change: impl FnOnce(&mut Condition)) {
        change(&mut self.condition.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn condition(&self) -> Condition {
        self.condition.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl AgentView for Agent {
    fn live(&self) -> Result<(), String> {
        self.condition().live
    }

    fn ready(&self) -> Result<(), String> {
        self.condition().ready
    }

    fn status(&self) -> Status {
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner).clone();
        status.uptime_seconds = self.started.elapsed().as_secs();
        status
    }

    fn registry(&self) -> &Registry {
        &self.registry
    }

    fn control_metrics(&self) -> &ControlMetrics {
        &self.metrics
    }

    fn query(&self, question: Question, query: &Query) -> Result<serde_json::Value, QueryError> {
        let store = self.store.read().unwrap_or_else(PoisonError::into_inner);
        admin::State {
            store: &store,
            topology: &self.topology,
            own_node: Some(&self.node),
        }
        .answer(question, query)
    }
}
