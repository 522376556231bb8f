//! The redirection as the control loop drives it: what is installed, what should be, and the lease. A holder that died is
//! replaced; errors are logged once per change of words.

use super::vips::Vips;
use crate::model::{IpFamily, Protocol};
use crate::redirect::verdict::{self, Severity};
use crate::redirect::{Desired, Redirect, RedirectConfig, RedirectCounters, RedirectError, RedirectEvent};
use crate::telemetry::metrics::ControlMetrics;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// First and longest wait before a lost redirection is installed again.
const AGAIN_MIN: Duration = Duration::from_millis(100);
const AGAIN_MAX: Duration = Duration::from_secs(10);

/// The verdict on this node: warnings are logged; refusals are the error, one line each.
pub async fn examine(config: &RedirectConfig) -> Result<(), String> {
    let verdict = verdict::examine(config, &[]).await;
    for warning in verdict.of_severity(Severity::Warning) {
        tracing::warn!("{warning}");
    }
    let refusals: Vec<String> = verdict
        .of_severity(Severity::Refuse)
        .map(|f| format!("\n  {f}"))
        .collect();
    if refusals.is_empty() {
        Ok(())
    } else {
        Err(refusals.concat())
    }
}

/// One instance's redirection.
pub struct Redirection {
    config: RedirectConfig,
    families: Vec<IpFamily>,
    installed: Option<Redirect>,
    events: Option<mpsc::Receiver<RedirectEvent>>,
    error: Option<String>,
    again: Duration,
    retry_at: Option<Instant>,
}

impl Redirection {
    /// Installs rules, routes and a table that redirects nothing yet.
    pub async fn install(config: RedirectConfig) -> Result<Self, RedirectError> {
        let (redirect, events) = Redirect::install(config.clone()).await?;
        for note in redirect.notes() {
            tracing::warn!("{note}");
        }
        Ok(Self {
            config,
            families: redirect.families().to_vec(),
            installed: Some(redirect),
            events: Some(events),
            error: None,
            again: AGAIN_MIN,
            retry_at: None,
        })
    }

    /// Families that can be redirected on this node.
    pub fn families(&self) -> &[IpFamily] {
        &self.families
    }

    /// Whether the table is in place.
    pub fn is_installed(&self) -> bool {
        self.installed.is_some()
    }

    /// What is wrong now.
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// Name of the nft table.
    pub fn table(&self) -> String {
        self.config.table()
    }

    /// The next thing that happened without our doing, or the time to install again (`None`).
    pub async fn next_event(&mut self) -> Option<RedirectEvent> {
        match (&mut self.events, self.retry_at) {
            (Some(events), _) => Some(events.recv().await.unwrap_or(RedirectEvent::HolderDied)),
            (None, Some(at)) => {
                tokio::time::sleep_until(at.into()).await;
                None
            }
            (None, None) => std::future::pending().await,
        }
    }

    /// Takes note of an event. The caller applies the wanted state afterwards.
    pub fn event(&mut self, event: Option<RedirectEvent>, metrics: &ControlMetrics) {
        match event {
            Some(RedirectEvent::Restored(what)) => {
                metrics.routes_restored.inc_by(what.len() as u64);
                tracing::warn!(
                    restored = what.join("; "),
                    "somebody removed rules or routes of ours; they are back"
                );
            }
            Some(RedirectEvent::NotRestored(what)) => {
                self.fail(
                    format!("rules or routes of ours are gone and cannot be put back: {what}"),
                    metrics,
                );
            }
            Some(RedirectEvent::HolderDied) => self.lost(RedirectError::HolderDied, metrics),
            None => {}
        }
    }

    /// Makes the table hold what `vips` says, installing it first where it was lost.
    pub async fn apply(&mut self, vips: &Vips, metrics: &ControlMetrics) {
        if self.installed.is_none() && self.retry_at.is_some_and(|at| at <= Instant::now()) {
            match Redirect::install(self.config.clone()).await {
                Ok((redirect, events)) => {
                    tracing::info!("the redirection is installed again");
                    self.installed = Some(redirect);
                    self.events = Some(events);
                    self.retry_at = None;
                }
                Err(error) => return self.lost(error, metrics),
            }
        }
        let Some(redirect) = &self.installed else {
            return;
        };
        let elements = |vip: crate::table::Vip| -> (std::net::SocketAddr, Protocol) { (vip.address, vip.protocol) };
        let desired = Desired {
            svc: vips.serving().map(elements).collect(),
            own: vips.owned().map(elements).collect(),
            // Only client-source traffic needs the endpoints; with the node's address answers come to ordinary sockets.
            ep: BTreeSet::new(),
        };
        match redirect.apply(desired).await {
            Ok(_) => {
                self.error = None;
                self.again = AGAIN_MIN;
            }
            Err(RedirectError::HolderDied) => self.lost(RedirectError::HolderDied, metrics),
            Err(error) => self.fail(error.to_string(), metrics),
        }
    }

    /// Renews the lease; called while every worker turns. Without VIPs there is nothing to lease.
    pub async fn renew_lease(&mut self, vips: &Vips, metrics: &ControlMetrics) {
        let Some(redirect) = self.installed.as_ref().filter(|_| vips.serving().next().is_some()) else {
            return;
        };
        match redirect.refresh_lease().await {
            Ok(()) => {}
            Err(RedirectError::HolderDied) => self.lost(RedirectError::HolderDied, metrics),
            Err(error) => self.fail(error.to_string(), metrics),
        }
    }

    /// The table's counters; `None` where there is no table.
    pub async fn counters(&self) -> Option<RedirectCounters> {
        self.installed.as_ref()?.counters().await.ok()
    }

    /// Lets kube-proxy take new flows.
    pub async fn release(&mut self) {
        if let Some(redirect) = &self.installed
            && let Err(error) = redirect.release_all().await
        {
            tracing::warn!(%error, "cannot empty the sets; the table goes at the end");
        }
    }

    /// Removes everything.
    pub async fn remove(self) {
        if let Some(redirect) = self.installed
            && let Err(error) = redirect.remove().await
        {
            tracing::warn!(%error, "the holder removes the redirection when this process ends");
        }
    }

    fn lost(&mut self, error: RedirectError, metrics: &ControlMetrics) {
        self.installed = None;
        self.events = None;
        self.retry_at = Some(Instant::now() + self.again);
        self.again = (self.again * 2).min(AGAIN_MAX);
        self.fail(error.to_string(), metrics);
    }

    fn fail(&mut self, words: String, metrics: &ControlMetrics) {
        metrics.redirect_errors.inc();
        if self.error.as_ref() != Some(&words) {
            tracing::error!("{words}");
            self.error = Some(words);
        }
    }
}
