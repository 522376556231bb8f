//! Which Services are taken over. Nothing is selected unless configuration says so.

use crate::model::{ObjectName, Service};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// The label by which a Service names the proxy that carries it; kube-proxy leaves Services alone that have it.
pub const PROXY_NAME_LABEL: &str = "service.kubernetes.io/service-proxy-name";

/// The `select` section.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Select {
    /// Services named one by one.
    pub services: BTreeSet<ObjectName>,
    /// Services by label.
    pub label_selector: Option<LabelSelector>,
    /// Services that name us in [`PROXY_NAME_LABEL`].
    pub service_proxy_name: Option<Arc<str>>,
}

/// Whether, and why, a Service is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// Named in `select.services`.
    Listed,
    /// Matches `select.labelSelector`.
    Label,
    /// Its label names our `select.serviceProxyName`; kube-proxy does not carry it.
    ProxyName,
    /// Not selected.
    NotSelected,
    /// Its label names another proxy: never taken, even if listed.
    OtherProxy(Arc<str>),
}

impl Selection {
    /// Whether we carry the Service.
    pub fn taken(&self) -> bool {
        matches!(self, Self::Listed | Self::Label | Self::ProxyName)
    }
}

impl Select {
    /// Whether nothing can ever be selected.
    pub fn is_empty(&self) -> bool {
        self.services.is_empty() && self.label_selector.is_none() && self.service_proxy_name.is_none()
    }

    /// Whether and why `service` is taken.
    pub fn selects(&self, service: &Service) -> Selection {
        if let Some(name) = service.labels.get(PROXY_NAME_LABEL) {
            return if self.service_proxy_name.as_ref() == Some(name) {
                Selection::ProxyName
            } else {
                Selection::OtherProxy(name.clone())
            };
        }
        if self.services.contains(&service.name) {
            return Selection::Listed;
        }
        match &self.label_selector {
            Some(s) if s.matches(&service.labels) => Selection::Label,
            _ => Selection::NotSelected,
        }
    }
}

/// One condition on labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    /// Label key.
    pub key: Arc<str>,
    /// Condition on its value.
    pub operator: Operator,
}

/// The operators of Kubernetes label selectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operator {
    /// The value is one of these.
    In(BTreeSet<Arc<str>>),
    /// The key is absent, or its value is none of these.
    NotIn(BTreeSet<Arc<str>>),
    /// The key is present.
    Exists,
    /// The key is absent.
    DoesNotExist,
}

/// A Kubernetes label selector: all requirements must hold. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelSelector {
    /// The requirements.
    pub requirements: Vec<Requirement>,
}

impl LabelSelector {
    /// Whether all requirements hold.
    pub fn matches(&self, labels: &BTreeMap<Arc<str>, Arc<str>>) -> bool {
        self.requirements.iter().all(|r| {
            let value = labels.get(&r.key);
            match &r.operator {
                Operator::In(values) => value.is_some_and(|v| values.contains(v)),
                Operator::NotIn(values) => !value.is_some_and(|v| values.contains(v)),
                Operator::Exists => value.is_some(),
                Operator::DoesNotExist => value.is_none(),
            }
        })
    }

    /// Parses the string form of `kubectl -l`: `app=dns,tier in (a,b),env!=test,team,!legacy`.
    ///
    /// # Errors
    /// Names the part that cannot be read.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut requirements = Vec::new();
        for part in split_outside_parentheses(text) {
            let part = part.trim();
            if part.is_empty() {
                return Err(format!(
                    "`{text}` has an empty part; write conditions separated by single commas"
                ));
            }
            requirements.push(parse_requirement(part)?);
        }
        Ok(Self { requirements })
    }
}

fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0u32, 0);
    for (i, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn parse_requirement(part: &str) -> Result<Requirement, String> {
    let one = |v: &str| label_value(v.trim()).map(|v| BTreeSet::from([v]));
    let (key, operator) = if let Some(key) = part.strip_prefix('!') {
        (key, Operator::DoesNotExist)
    } else if let Some((key, value)) = part.split_once("!=") {
        (key, Operator::NotIn(one(value)?))
    } else if let Some((key, value)) = part.split_once("==") {
        (key, Operator::In(one(value)?))
    } else if let Some((key, value)) = part.split_once('=') {
        (key, Operator::In(one(value)?))
    } else if let Some(rest) = part.strip_suffix(')') {
        let (head, values) = rest
            .split_once('(')
            .ok_or_else(|| format!("`{part}`: a `)` without `(`"))?;
        let values: Result<BTreeSet<_>, _> = values.split(',').map(|v| label_value(v.trim())).collect();
        match head.split_whitespace().collect::<Vec<_>>()[..] {
            [key, "in"] => (key, Operator::In(values?)),
            [key, "notin"] => (key, Operator::NotIn(values?)),
            _ => return Err(format!("`{part}`: write `key in (a, b)` or `key notin (a, b)`")),
        }
    } else {
        (part, Operator::Exists)
    };
    Ok(Requirement {
        key: label_key(key.trim())?,
        operator,
    })
}

/// Checks a label key: an optional DNS name and `/`, then a name of at most 63 letters, digits, `-`, `_`, `.`.
///
/// # Errors
/// Says what a key looks like.
pub(super) fn label_key(key: &str) -> Result<Arc<str>, String> {
    let (prefix, name) = key.rsplit_once('/').map_or((None, key), |(p, n)| (Some(p), n));
    let prefix_fine = prefix.is_none_or(|p| {
        !p.is_empty() && p.len() <= 253 && p.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '.')
    });
    if name.is_empty() || !prefix_fine || !is_label_name(name) {
        return Err(format!(
            "`{key}` is not a label key, such as `app` or `example.com/team`"
        ));
    }
    Ok(key.into())
}

/// Checks a label value: empty, or at most 63 letters, digits, `-`, `_`, `.`.
///
/// # Errors
/// Says what a value looks like.
pub(super) fn label_value(value: &str) -> Result<Arc<str>, String> {
    if !value.is_empty() && !is_label_name(value) {
        return Err(format!(
            "`{value}` is not a label value (at most 63 letters, digits, `-`, `_`, `.`)"
        ));
    }
    Ok(value.into())
}

fn is_label_name(s: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    s.len() <= 63
        && edge(s.chars().next())
        && edge(s.chars().next_back())
        && s.chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, r) in self.requirements.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            let list = |v: &BTreeSet<Arc<str>>| v.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(",");
            match &r.operator {
                Operator::In(v) if v.len() == 1 => write!(f, "{}={}", r.key, list(v))?,
                Operator::In(v) => write!(f, "{} in ({})", r.key, list(v))?,
                Operator::NotIn(v) if v.len() == 1 => write!(f, "{}!={}", r.key, list(v))?,
                Operator::NotIn(v) => write!(f, "{} notin ({})", r.key, list(v))?,
                Operator::Exists => write!(f, "{}", r.key)?,
                Operator::DoesNotExist => write!(f, "!{}", r.key)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn labels(list: &[(&str, &str)]) -> BTreeMap<Arc<str>, Arc<str>> {
        list.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect()
    }

    #[test]
    fn string_form_matches_as_kubectl_does() {
        let s = LabelSelector::parse("app=dns, tier in (a,b),env!=test,team,!legacy").unwrap();
        let good = [("app", "dns"), ("tier", "b"), ("team", "x")];
        assert!(s.matches(&labels(&good)));
        for (key, value) in [("app", "web"), ("tier", "c"), ("env", "test"), ("legacy", "")] {
            let mut l = labels(&good);
            l.insert(key.into(), value.into());
            assert!(!s.matches(&l), "{key}={value}");
        }
        for missing in ["app", "tier", "team"] {
            let mut l = labels(&good);
            l.remove(missing);
            assert!(!s.matches(&l), "{missing} missing");
        }
        assert_eq!(LabelSelector::parse(&s.to_string()).unwrap(), s);
        let notin = LabelSelector::parse("app notin (a,b)").unwrap();
        assert!(notin.matches(&labels(&[])) && !notin.matches(&labels(&[("app", "a")])));
    }

    #[test]
    fn bad_selectors_are_refused() {
        for bad in [
            "",
            "a=b,,c",
            "a in b",
            "a in (b",
            "=x",
            "a b",
            "a=b c",
            "-a=b",
            "x within (a)",
            "a=b)",
        ] {
            assert!(LabelSelector::parse(bad).is_err(), "{bad}");
        }
    }
}
