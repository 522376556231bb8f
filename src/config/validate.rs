//! From the file's text to a [`Config`]: every value parsed, every contradiction named with both places.

use super::checker::{Checker, is_blank, shape_error};
use super::error::ConfigError;
use super::raw;
use super::select::{LabelSelector, Select, label_key, label_value};
use super::values::*;
use super::{Admin, Config, EngineChoice, Log, LogFormat, MAX_BATCH_DELAY, MAX_LEVELS, Redirect, Udp, Workers, units};
use crate::model::ObjectName;
use crate::topology::{Level, ServiceRef, ServiceRule, TopologyConfig};
use serde_saphyr::{Location, Spanned};
use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub(super) fn parse(text: &str, path: &Path, env_node: Option<&str>) -> Result<Config, ConfigError> {
    // A file of comments alone means: all defaults.
    let file = if is_blank(text) {
        raw::File::default()
    } else {
        serde_saphyr::from_str(text).map_err(|e| shape_error(&e, text, path))?
    };
    let mut c = Checker {
        path,
        problems: Vec::new(),
        warnings: Vec::new(),
    };
    let mut config = c.file(&file, env_node);
    if c.problems.is_empty() {
        config.warnings = c.warnings;
        Ok(config)
    } else {
        c.problems.sort_by_key(|p| (p.line, p.column));
        Err(ConfigError {
            file: path.to_owned(),
            problems: c.problems,
        })
    }
}

impl Checker<'_> {
    fn file(&mut self, file: &raw::File, env_node: Option<&str>) -> Config {
        let defaults = Config::default();
        let node = match &file.node {
            Some(text) => self.value("node", Some(text), None, |s| node_name(s).map(Some)),
            None => env_node.filter(|n| !n.is_empty()).and_then(|n| {
                node_name(n)
                    .map_err(|m| self.problem(Location::UNKNOWN, super::NODE_NAME_ENV, format!("(environment) {m}")))
                    .ok()
            }),
        };
        let folder = self.path.parent().unwrap_or(Path::new("")).to_owned();
        let source_path = file.source.as_ref().and_then(|s| s.file.as_ref()?.path.as_ref());
        let source_file = self.value("source.file.path", source_path, None, |s| {
            if s.is_empty() {
                return Err("empty; name a manifest or a folder of manifests".into());
            }
            Ok(Some(folder.join(s)))
        });
        let select = self.select(file.select.as_ref());
        let topology = self.topology(file);
        self.rules_of_unselected_services(file, &select);
        let workers = self.value("workers", file.workers.as_ref(), defaults.workers, |s| match s {
            "auto" => Ok(Workers::Auto),
            n => match n.parse() {
                Ok(n @ 1..=64) => Ok(Workers::Count(n)),
                _ => Err(format!("`{s}` is neither `auto` nor a whole number from 1 to 64")),
            },
        });
        let engine = self.value("engine", file.engine.as_ref(), defaults.engine, |s| match s {
            "auto" => Ok(EngineChoice::Auto),
            "io_uring" => Ok(EngineChoice::IoUring),
            "epoll" => {
                Err("the `epoll` engine is not built yet; use `auto` or `io_uring` (kernel 6.1 or newer)".into())
            }
            _ => Err(format!("`{s}` is not known; {}", suggestion(s, &["auto", "io_uring"]))),
        });
        let redirect = self.redirect(file);
        let udp = self.udp(file.udp.as_ref());
        let admin = self.admin(file.admin.as_ref());
        self.admin_port_in_pool(file, &redirect, &admin);
        let limit = Duration::ZERO..=MAX_BATCH_DELAY;
        let batch_window = self.duration("batchWindow", file.batch_window.as_ref(), defaults.batch_window, limit);
        Config {
            node,
            source_file,
            select,
            topology,
            workers,
            engine,
            redirect,
            udp,
            admin,
            batch_window,
            log: self.log(file.log.as_ref()),
            warnings: Vec::new(),
        }
    }

    fn select(&mut self, select: Option<&raw::Select>) -> Select {
        let Some(select) = select else { return Select::default() };
        let mut services = BTreeSet::new();
        let mut seen: HashMap<ObjectName, u64> = HashMap::new();
        for (i, text) in select.services.iter().flatten().enumerate() {
            let key = format!("select.services[{i}]");
            let Some(name) = self.value(&key, Some(text), None, |s| object_name(s).map(Some)) else {
                continue;
            };
            if let Some(line) = seen.insert(name.clone(), text.referenced.line()) {
                self.problem(
                    text.referenced,
                    &key,
                    format!("`{name}` is listed in line {line} already; keep one of them"),
                );
            }
            services.insert(name);
        }
        let label_selector = select.label_selector.as_ref().and_then(|s| self.selector(s));
        let key = "select.serviceProxyName";
        let service_proxy_name = self.value(key, select.service_proxy_name.as_ref(), None, |s| {
            match label_value(s) {
                Ok(v) if !v.is_empty() => Ok(Some(v)),
                Ok(_) => Err("empty; leave the key out instead".into()),
                Err(m) => Err(m),
            }
        });
        Select {
            services,
            label_selector,
            service_proxy_name,
        }
    }

    fn selector(&mut self, selector: &Spanned<raw::Selector>) -> Option<LabelSelector> {
        let parsed = match &selector.value {
            raw::Selector::Text(s) => LabelSelector::parse(s.trim()),
            raw::Selector::Object(o) => selector_object(o),
        };
        let parsed = parsed.and_then(|s| match s.requirements.is_empty() {
            false => Ok(s),
            true => Err("an empty selector would take every Service of the cluster; name a label".into()),
        });
        parsed
            .map_err(|m| self.problem(selector.referenced, "select.labelSelector", m))
            .ok()
    }

    fn topology(&mut self, file: &raw::File) -> TopologyConfig {
        let defaults = TopologyConfig::default();
        let empty = raw::Topology::default();
        let t = file.topology.as_ref().unwrap_or(&empty);
        let default_policy = self.word("topology.defaultPolicy", t.default_policy.as_ref(), POLICIES);
        let interpretation = t.default_interpretation.as_ref();
        let default_interpretation = self.word("topology.defaultInterpretation", interpretation, INTERPRETATIONS);
        let source_address = t.default_source_address.as_ref();
        let default_source_address = self.word("topology.defaultSourceAddress", source_address, SOURCE_ADDRESSES);
        TopologyConfig {
            default_policy: default_policy.unwrap_or(defaults.default_policy),
            default_interpretation: default_interpretation.unwrap_or(defaults.default_interpretation),
            default_source_address: default_source_address.unwrap_or(defaults.default_source_address),
            levels: match &t.levels {
                Some(levels) => self.levels(levels),
                None => defaults.levels,
            },
            rules: self.rules(file.services.as_deref().unwrap_or_default()),
        }
    }

    fn levels(&mut self, levels: &[Spanned<raw::Level>]) -> Arc<[Level]> {
        let mut out: Vec<Level> = Vec::new();
        let mut lines: Vec<u64> = Vec::new();
        if let Some(first_too_many) = levels.get(MAX_LEVELS) {
            self.problem(
                first_too_many.referenced,
                "topology.levels",
                format!("{} levels; at most {MAX_LEVELS} are possible", levels.len()),
            );
            return out.into();
        }
        for (i, level) in levels.iter().enumerate() {
            let key = format!("topology.levels[{i}]");
            let (Some(name), Some(label)) = (&level.value.name, &level.value.label) else {
                self.problem(level.referenced, &key, "a level needs `name` and `label`");
                continue;
            };
            let level_name = self.value(&format!("{key}.name"), Some(name), None, |s| level_word(s).map(Some));
            let level_label = self.value(&format!("{key}.label"), Some(label), None, |s| label_key(s).map(Some));
            let (Some(level_name), Some(level_label)) = (level_name, level_label) else {
                continue;
            };
            for (earlier, line) in out.iter().zip(&lines) {
                if earlier.name == level_name {
                    self.problem(
                        name.referenced,
                        &format!("{key}.name"),
                        format!("the level `{level_name}` exists in line {line} already"),
                    );
                } else if earlier.label == level_label {
                    let other = &earlier.name;
                    self.problem(
                        label.referenced,
                        &format!("{key}.label"),
                        format!("`{level_label}` defines the level `{other}` in line {line} already"),
                    );
                }
            }
            lines.push(level.referenced.line());
            out.push(Level {
                name: level_name,
                label: level_label,
            });
        }
        out.into()
    }

    fn rules(&mut self, rules: &[Spanned<raw::Rule>]) -> Vec<ServiceRule> {
        let mut out = Vec::new();
        let mut seen: HashMap<ServiceRef, u64> = HashMap::new();
        for (i, rule) in rules.iter().enumerate() {
            let (at, rule) = (rule.referenced, &rule.value);
            let key = format!("services[{i}]");
            let Some(name) = &rule.name else {
                self.problem(
                    at,
                    &key,
                    "`name` is missing: write `namespace/name` or `namespace/name:port`",
                );
                continue;
            };
            let service = self.value(&format!("{key}.name"), Some(name), None, |s| service_ref(s).map(Some));
            let policy = self.word(&format!("{key}.policy"), rule.policy.as_ref(), POLICIES);
            let interpretation = rule.interpretation.as_ref();
            let interpretation = self.word(&format!("{key}.interpretation"), interpretation, INTERPRETATIONS);
            let profile = self.word(&format!("{key}.profile"), rule.profile.as_ref(), PROFILES);
            let source_address = rule.source_address.as_ref();
            let source_address = self.word(&format!("{key}.sourceAddress"), source_address, SOURCE_ADDRESSES);
            let Some(service) = service else { continue };
            if let Some(line) = seen.insert(service.clone(), at.line()) {
                self.problem(
                    at,
                    &key,
                    format!("`{service}` is ruled in line {line} already; put both rules into one"),
                );
            }
            let is_empty = rule.policy.is_none()
                && rule.interpretation.is_none()
                && rule.profile.is_none()
                && rule.source_address.is_none();
            if is_empty {
                self.problem(at, &key, "this rule sets nothing; add a setting or remove it");
            }
            out.push(ServiceRule {
                service,
                policy,
                interpretation,
                profile,
                source_address,
            });
        }
        out
    }

    /// A rule alone selects nothing; where only a list selects, a rule outside it has no effect.
    fn rules_of_unselected_services(&mut self, file: &raw::File, select: &Select) {
        if select.label_selector.is_some() || select.service_proxy_name.is_some() {
            return;
        }
        for (i, rule) in file.services.iter().flatten().enumerate() {
            let Some(Ok(service)) = rule.value.name.as_ref().map(|n| service_ref(n.value.trim())) else {
                continue;
            };
            if !select.services.contains(&service.service) {
                self.warning(
                    rule.referenced,
                    &format!("services[{i}]"),
                    format!(
                        "`{}` is not in select.services: this rule changes nothing that is carried",
                        service.service
                    ),
                );
            }
        }
    }

    fn redirect(&mut self, file: &raw::File) -> Redirect {
        let d = Redirect::default();
        let empty = raw::Redirect::default();
        let r = file.redirect.as_ref().unwrap_or(&empty);
        Redirect {
            enabled: self.value("redirect.enabled", r.enabled.as_ref(), d.enabled, |s| match s {
                "true" => Ok(true),
                "false" => Ok(false),
                _ => Err(format!("`{s}` is neither `true` nor `false`")),
            }),
            instance: self.value("redirect.instance", r.instance.as_ref(), d.instance, |s| {
                let fine = !s.is_empty()
                    && s.len() <= 16
                    && !s.starts_with('-')
                    && s.chars()
                        .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
                match fine {
                    true => Ok(s.to_owned()),
                    false => Err(format!("`{s}`: write 1 to 16 lower-case letters, digits or `-`")),
                }
            }),
            mark: self.value("redirect.mark", r.mark.as_ref(), d.mark, mark_field),
            pool_ports: self.value("redirect.poolPorts", r.pool_ports.as_ref(), d.pool_ports, pool_ports),
            // 253 to 255 are the kernel's own tables; 0 means "unspecified".
            route_table: self.value("redirect.routeTable", r.route_table.as_ref(), d.route_table, |s| {
                match units::number_u32(s)? {
                    0 | 253..=255 => Err(format!("table {s} belongs to the kernel; take another number")),
                    n => Ok(n),
                }
            }),
            // Three rules in front of `main` (32766) and behind `local` (0).
            rule_priority: self.number(
                "redirect.rulePriority",
                r.rule_priority.as_ref(),
                d.rule_priority,
                1..=32_763,
            ),
        }
    }

    fn udp(&mut self, udp: Option<&raw::Udp>) -> Udp {
        let d = Udp::default();
        let empty = raw::Udp::default();
        let u = udp.unwrap_or(&empty);
        let stored = 64 << 10..=1 << 30;
        let receive = 64 << 10..=256 << 20;
        let timeout = Duration::from_millis(500)..=Duration::from_secs(60);
        let receive_buffer = self.size(
            "udp.receiveBuffer",
            u.receive_buffer.as_ref(),
            d.receive_buffer.into(),
            receive,
        );
        Udp {
            max_outstanding: self.number(
                "udp.maxOutstanding",
                u.max_outstanding.as_ref(),
                d.max_outstanding,
                64..=1 << 20,
            ),
            stored_bytes: self.size("udp.storedBytes", u.stored_bytes.as_ref(), d.stored_bytes, stored),
            dns_timeout: self.duration("udp.dnsTimeout", u.dns_timeout.as_ref(), d.dns_timeout, timeout),
            upstream_sockets: self.number(
                "udp.upstreamSockets",
                u.upstream_sockets.as_ref(),
                d.upstream_sockets,
                1..=2048,
            ),
            receive_buffer: u32::try_from(receive_buffer).unwrap_or(d.receive_buffer),
        }
    }

    fn admin(&mut self, admin: Option<&raw::Admin>) -> Admin {
        let d = Admin::default();
        let empty = raw::Admin::default();
        let a = admin.unwrap_or(&empty);
        Admin {
            listen: self.value("admin.listen", a.listen.as_ref(), d.listen, |s| match s {
                "off" => Ok(None),
                _ => s.parse::<SocketAddr>().map(Some).map_err(|_| {
                    format!("`{s}` is neither `off` nor address:port, such as `0.0.0.0:9410` or `[::1]:9410`")
                }),
            }),
            run_dir: self.value("admin.runDir", a.run_dir.as_ref(), d.run_dir, |s| {
                // A Unix socket's path has room for 107 bytes; the file's name needs up to 46.
                match Path::new(s).is_absolute() && s.len() <= 60 {
                    true => Ok(PathBuf::from(s)),
                    false => Err(format!("`{s}` must be an absolute path of at most 60 bytes")),
                }
            }),
        }
    }

    fn admin_port_in_pool(&mut self, file: &raw::File, redirect: &Redirect, admin: &Admin) {
        let Some(listen) = admin.listen.filter(|l| redirect.pool_ports.contains(&l.port())) else {
            return;
        };
        let pool_at = file.redirect.as_ref().and_then(|r| r.pool_ports.as_ref());
        let listen_at = file.admin.as_ref().and_then(|a| a.listen.as_ref());
        let at = listen_at.or(pool_at).map_or(Location::UNKNOWN, |t| t.referenced);
        let pool_place = pool_at.map_or("the default".into(), |t| format!("line {}", t.referenced.line()));
        let (first, last) = (redirect.pool_ports.start(), redirect.pool_ports.end());
        self.problem(
            at,
            "admin.listen",
            format!(
                "port {} lies in redirect.poolPorts {first}-{last} ({pool_place}); move one of them",
                listen.port()
            ),
        );
    }

    fn log(&mut self, log: Option<&raw::Log>) -> Log {
        let d = Log::default();
        let empty = raw::Log::default();
        let l = log.unwrap_or(&empty);
        Log {
            level: self.value("log.level", l.level.as_ref(), d.level, |s| {
                crate::telemetry::log::check_level(s).map(|()| s.to_owned())
            }),
            format: self.value("log.format", l.format.as_ref(), d.format, |s| match s {
                "text" => Ok(LogFormat::Text),
                "json" => Ok(LogFormat::Json),
                _ => Err(format!("`{s}` is not known; {}", suggestion(s, &["text", "json"]))),
            }),
        }
    }
}
