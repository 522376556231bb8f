//! The answers about Services, computed from a cluster state: the same functions serve a live agent and `--from PATH`, so
//! that both print the same.

use super::{Query, QueryError, Question};
use crate::model::{NodeName, ObjectName};
use crate::store::{ServiceState, Store};
use crate::topology::{Interpretation, NodeContext, ServiceRef, TopologyConfig};
use crate::view::{
    EndpointRow, Explanation, ServicePortView, ServiceRow, endpoint_rows, explain_views, service_rows, service_views,
};
use serde::Deserialize;
use serde::de::IntoDeserializer;
use std::sync::Arc;

/// A cluster state seen from a node under a configuration.
#[derive(Debug)]
pub struct State<'a> {
    /// The cluster state.
    pub store: &'a Store,
    /// What ranking depends on.
    pub topology: &'a TopologyConfig,
    /// The node whose view is asked for where the query names none.
    pub own_node: Option<&'a NodeName>,
}

impl State<'_> {
    /// Why each endpoint of the service ports asked for is in or out.
    ///
    /// # Errors
    /// [`QueryError::Bad`] without a service or with one that is no name, [`QueryError::NotFound`] where nothing matches.
    pub fn explain(&self, query: &Query) -> Result<Vec<Explanation>, QueryError> {
        let request = required(query)?;
        let (views, node) = self.views(Some(&request), query)?;
        let found = explain_views(&views, &node, Some(&request));
        match found.is_empty() {
            true => Err(self.not_found(&request)),
            false => Ok(found),
        }
    }

    /// One row per service port and family.
    ///
    /// # Errors
    /// As [`State::explain`]; without a service all rows, maybe none.
    pub fn services(&self, query: &Query) -> Result<Vec<ServiceRow>, QueryError> {
        let request = query.service.as_deref().map(service_ref).transpose()?;
        let (views, node) = self.views(request.as_ref(), query)?;
        let rows = service_rows(&views, &node, request.as_ref());
        match &request {
            Some(request) if rows.is_empty() => Err(self.not_found(request)),
            _ => Ok(rows),
        }
    }

    /// The endpoints of one Service.
    ///
    /// # Errors
    /// As [`State::explain`]; a Service without endpoints has no rows.
    pub fn endpoints(&self, query: &Query) -> Result<Vec<EndpointRow>, QueryError> {
        let request = required(query)?;
        let (views, node) = self.views(Some(&request), query)?;
        if explain_views(&views, &node, Some(&request)).is_empty() {
            return Err(self.not_found(&request));
        }
        Ok(endpoint_rows(&views, &node, Some(&request)))
    }

    /// Any question, as JSON.
    ///
    /// # Errors
    /// Those of the single questions.
    pub fn answer(&self, question: Question, query: &Query) -> Result<serde_json::Value, QueryError> {
        let value = match question {
            Question::Explain => serde_json::to_value(self.explain(query)?),
            Question::Services => serde_json::to_value(self.services(query)?),
            Question::Endpoints => serde_json::to_value(self.endpoints(query)?),
            Question::Dump => Ok(super::dump::list(self.store)),
        };
        value.map_err(|e| QueryError::Unavailable(e.to_string()))
    }

    /// The node asked for, as ranking sees it.
    fn node(&self, query: &Query) -> Result<NodeContext, QueryError> {
        let name: NodeName = match (&query.node, self.own_node) {
            (Some(name), _) => name.as_str().into(),
            (None, Some(own)) => own.clone(),
            (None, None) => {
                return Err(QueryError::Bad(
                    "name the node whose view you want (--node NAME)".into(),
                ));
            }
        };
        let nodes = self
            .store
            .nodes()
            .iter()
            .map(|(name, node)| (name.clone(), node.clone()));
        Ok(NodeContext {
            node: self.store.node(&name).cloned(),
            name,
            levels: self.topology.levels.clone(),
            nodes: Arc::new(nodes.collect()),
        })
    }

    fn views(
        &self,
        request: Option<&ServiceRef>,
        query: &Query,
    ) -> Result<(Vec<ServicePortView>, NodeContext), QueryError> {
        let node = self.node(query)?;
        let forced = query.interpretation.as_deref().map(interpretation).transpose()?;
        let mut states: Vec<(&ObjectName, &ServiceState)> = match request {
            Some(r) => self
                .store
                .get(&r.service)
                .map(|s| (&r.service, s))
                .into_iter()
                .collect(),
            None => self.store.services().collect(),
        };
        states.sort_unstable_by_key(|(name, _)| *name);
        let mut views = Vec::new();
        for (name, state) in states {
            let Some(service) = state.service() else { continue };
            match forced {
                None => views.extend(service_views(service, state.slices(), &node, self.topology)),
                Some(i) => {
                    let topology = self.topology.with_interpretation(name, i);
                    views.extend(service_views(service, state.slices(), &node, &topology));
                }
            }
        }
        Ok((views, node))
    }

    fn not_found(&self, request: &ServiceRef) -> QueryError {
        let service = self.store.get(&request.service).and_then(ServiceState::service);
        QueryError::NotFound(match service {
            None => format!("no Service {} here (`nodeward services` lists all)", request.service),
            Some(s) if !s.is_proxied() => {
                format!(
                    "Service {} has no ClusterIP to serve: it is headless, or an ExternalName",
                    request.service
                )
            }
            Some(_) => format!(
                "Service {} has no TCP or UDP port like that: {request}",
                request.service
            ),
        })
    }
}

fn required(query: &Query) -> Result<ServiceRef, QueryError> {
    match &query.service {
        Some(text) => service_ref(text),
        None => Err(QueryError::Bad(
            "name a Service: namespace/name or namespace/name:port".into(),
        )),
    }
}

fn service_ref(text: &str) -> Result<ServiceRef, QueryError> {
    crate::config::service_ref(text).map_err(QueryError::Bad)
}

fn interpretation(word: &str) -> Result<Interpretation, QueryError> {
    let word_in: serde::de::value::StrDeserializer<'_, serde::de::value::Error> = word.into_deserializer();
    Interpretation::deserialize(word_in)
        .map_err(|_| QueryError::Bad(format!("`{word}` is no interpretation: `ranked` or `strict`")))
}
