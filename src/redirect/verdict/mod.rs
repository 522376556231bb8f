//! The verdict on a node: can its kernel, its firewall and its other network software carry the redirection?
//!
//! Only questions are asked here: nothing is installed, bound or changed (`nft -c` sends a transaction that the kernel
//! checks and throws away). `nodeward check` prints the verdict; the agent asks for it at start and takes nothing over
//! where an answer is [`Severity::Refuse`].

mod firewall;
mod kernel;
mod neighbours;

pub use neighbours::local_vips;
mod walk;

pub(in crate::redirect) use kernel::missing_features;

use super::config::RedirectConfig;
use serde::Serialize;
use std::fmt;
use std::net::IpAddr;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Fine.
    Ok,
    /// It works, or may work; the operator should look.
    Warning,
    /// It cannot work: nothing is taken over.
    Refuse,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Refuse => "refuse",
        })
    }
}

/// One answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at; a fixed word, such as `nft` or `input-firewall`.
    pub check: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What was found, in words.
    pub message: String,
    /// What to do about it: a command or a setting. `None` where nothing has to be done.
    pub fix: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, message: impl Into<String>) -> Self {
        Self {
            check,
            severity: Severity::Ok,
            message: message.into(),
            fix: None,
        }
    }

    fn warning(check: &'static str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            check,
            severity: Severity::Warning,
            message: message.into(),
            fix: Some(fix.into()),
        }
    }

    fn refuse(check: &'static str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            check,
            severity: Severity::Refuse,
            message: message.into(),
            fix: Some(fix.into()),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.check, self.message)?;
        match &self.fix {
            Some(fix) => write!(f, "; to do: {fix}"),
            None => Ok(()),
        }
    }
}

/// All answers, in a fixed order. As text by `Display`, as JSON by `Serialize`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// The worst severity found.
    pub verdict: Severity,
    /// Every answer, the good ones too.
    pub findings: Vec<Finding>,
}

impl Verdict {
    fn of(findings: Vec<Finding>) -> Self {
        let verdict = findings.iter().map(|f| f.severity).max().unwrap_or(Severity::Ok);
        Self { verdict, findings }
    }

    /// The findings of one severity.
    pub fn of_severity(&self, severity: Severity) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(move |f| f.severity == severity)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            writeln!(f, "{:<8} {:<15} {}", finding.severity, finding.check, finding.message)?;
            if let Some(fix) = &finding.fix {
                writeln!(f, "{:<8} {:<15} fix: {fix}", "", "")?;
            }
        }
        match self.verdict {
            Severity::Ok => writeln!(f, "verdict: this node can carry the redirection"),
            Severity::Warning => writeln!(f, "verdict: this node can carry the redirection; see the warnings"),
            Severity::Refuse => writeln!(
                f,
                "verdict: this node cannot carry the redirection; nothing is taken over"
            ),
        }
    }
}

/// Examines the node, that is the network namespace of the calling thread. `vips` are the addresses that would be taken
/// over, as far as they are known. Runs nft a few dozen times: some hundred milliseconds.
pub async fn examine(config: &RedirectConfig, vips: &[IpAddr]) -> Verdict {
    let mut findings = Vec::new();
    if let Err(e) = config.validate() {
        findings.push(Finding::refuse("configuration", e.to_string(), "correct the key named"));
        return Verdict::of(findings);
    }
    findings.push(kernel::version());
    findings.push(kernel::capabilities());
    let nft = kernel::nft(config).await;
    let nft_works = nft.severity != Severity::Refuse;
    findings.push(nft);
    if nft_works {
        findings.extend(kernel::features(config).await);
    }
    findings.push(kernel::ipv6(config));
    findings.push(kernel::pool_ports(config));
    findings.extend(neighbours::routing(config).await);
    if nft_works {
        findings.push(neighbours::tables(config).await);
        findings.extend(firewall::input(config).await);
    }
    findings.extend(neighbours::interfaces());
    findings.extend(neighbours::local_vips(vips));
    findings.push(neighbours::bridge());
    Verdict::of(findings)
}
