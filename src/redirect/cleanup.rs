//! Removal of what dead instances left behind: inert rules and routes (if agent and holder were killed together), and
//! tables of our name that nobody owns (restored from a saved rule set). Live instances are never touched.

use super::config::{TABLE_PREFIX, valid_instance};
use super::nft::{first_error, our_tables, run_once};
use super::plan::Plan;
use super::routing::Routing;
use serde::Serialize;

/// What [`cleanup`] did, in words.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cleaned {
    /// Tables, rules and routes removed.
    pub removed: Vec<String>,
    /// Rules and routes that a live instance uses.
    pub kept: Vec<String>,
    /// Live instances seen.
    pub live: Vec<String>,
}

/// Why [`cleanup`] did not do it all.
#[derive(Debug, thiserror::Error)]
pub enum CleanupError {
    /// Not an instance id.
    #[error("cleanup: `{0}` is no instance id (1 to 32 lower-case letters, digits or `-`)")]
    Instance(String),
    /// The instance named is alive.
    #[error("cleanup: instance `{0}` is alive; stop it instead, it removes everything itself")]
    Alive(String),
    /// nft or rtnetlink refused.
    #[error("cleanup: {0} (needs nft and CAP_NET_ADMIN)")]
    Refused(String),
}

/// Removes what dead instances left in this network namespace. With `instance`, only that instance's table; rules and
/// routes bear no instance's name, so all that no live instance uses go in either case.
///
/// # Errors
/// The instance named is alive (then nothing is touched), or something could not be removed.
pub async fn cleanup(nft: &str, instance: Option<&str>) -> Result<Cleaned, CleanupError> {
    if let Some(id) = instance.filter(|id| !valid_instance(id)) {
        return Err(CleanupError::Instance(id.to_owned()));
    }
    let tables = our_tables(nft).await.map_err(CleanupError::Refused)?;
    let alive = |id: &str| tables.iter().any(|t| t.owned && t.instance == id);
    if let Some(id) = instance.filter(|id| alive(id)) {
        return Err(CleanupError::Alive(id.to_owned()));
    }
    let mut cleaned = Cleaned::default();
    let mut plans = Vec::new();
    let mut unreadable = None;
    for table in tables.iter().filter(|t| t.owned) {
        cleaned.live.push(table.instance.clone());
        match Plan::from_comment(&table.comment) {
            Some(plan) => plans.push(plan),
            None => unreadable = Some(table.instance.as_str()),
        }
    }
    for table in tables
        .iter()
        .filter(|t| !t.owned && instance.is_none_or(|id| id == t.instance))
    {
        let name = format!("{TABLE_PREFIX}{}", table.instance);
        let run = run_once(nft, &["delete", "table", "inet", &name], None).await;
        match run {
            Ok(run) if run.success => cleaned.removed.push(format!("table inet {name}")),
            Ok(run) => {
                return Err(CleanupError::Refused(format!(
                    "table inet {name}: {}",
                    first_error(&run.stderr)
                )));
            }
            Err(e) => return Err(CleanupError::Refused(format!("table inet {name}: {e}"))),
        }
    }
    if let Some(id) = unreadable {
        let message = format!("rules and routes are kept: live instance `{id}` does not say which ones it uses");
        cleaned.kept.push(message);
        return Ok(cleaned);
    }
    let routing = Routing::open().map_err(|e| CleanupError::Refused(e.to_string()))?;
    let (removed, kept) = routing.remove_leftovers(&plans).await.map_err(CleanupError::Refused)?;
    cleaned.removed.extend(removed.iter().map(ToString::to_string));
    cleaned.kept.extend(kept.iter().map(ToString::to_string));
    Ok(cleaned)
}
