//! Text of network policies, as the store holds it. What is printed is parsed to the same value.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use super::{
    NetworkPolicies, NetworkPolicy, PodSelector, PolicyDirection, PolicyPeer, PolicyPort,
    PolicyRule,
};
use crate::{Cidr, PodName, Protocol};

/// Characters of an invalid line that its error shows.
const SHOWN: usize = 80;

/// Peers of a rule that has those of every address.
const EVERY: &str = "*";

/// A text is not one that [`NetworkPolicies`] was printed as.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the network policies is invalid: {text:?}")]
pub struct InvalidPolicyText {
    /// Number of the line, starting with 1.
    pub line: usize,
    /// The beginning of its text.
    pub text: String,
}

impl fmt::Display for NetworkPolicies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, prefixes) in &self.groups {
            writeln!(f, "group {} {}", Escaped(name), Joined(",", prefixes))?;
        }
        self.policies.iter().try_for_each(|policy| policy.fmt(f))
    }
}

impl fmt::Display for NetworkPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "policy {}", Escaped(&self.name))?;
        for selector in &self.pods {
            match selector {
                PodSelector::Name(PodName { namespace, name }) => {
                    writeln!(f, "pod {} {}", Escaped(namespace), Escaped(name))?;
                }
                PodSelector::Prefix(prefix) => writeln!(f, "prefix {prefix}")?,
            }
        }
        for direction in PolicyDirection::ALL {
            if let Some(rules) = self.rules(direction) {
                writeln!(f, "{direction}")?;
                rules.iter().try_for_each(|rule| rule.fmt(f))?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for PolicyRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("rule ")?;
        match &self.peers {
            None => f.write_str(EVERY)?,
            Some(peers) => Joined(",", peers).fmt(f)?,
        }
        writeln!(f, " {}", Joined(",", &self.ports))
    }
}

impl fmt::Display for PolicyPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Block { cidr, except } => {
                cidr.fmt(f)?;
                except.iter().try_for_each(|hole| write!(f, "!{hole}"))
            }
            Self::Group(name) => write!(f, "@{}", Escaped(name)),
        }
    }
}

impl fmt::Display for PolicyPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ports {
            None => self.protocol.fmt(f),
            Some((first, last)) => write!(f, "{}:{first}-{last}", self.protocol),
        }
    }
}

/// Items with a separator between them.
struct Joined<'a, T: ?Sized>(&'static str, &'a T);

impl<'a, T: ?Sized> fmt::Display for Joined<'a, T>
where
    &'a T: IntoIterator<Item: fmt::Display>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, item) in self.1.into_iter().enumerate() {
            if index > 0 {
                f.write_str(self.0)?;
            }
            item.fmt(f)?;
        }
        Ok(())
    }
}

/// A name without bytes that separate words or lines.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.bytes().try_for_each(|byte| match byte {
            b'-' | b'.' | b'_' => write!(f, "{}", char::from(byte)),
            byte if byte.is_ascii_alphanumeric() => write!(f, "{}", char::from(byte)),
            byte => write!(f, "%{byte:02x}"),
        })
    }
}

fn unescape(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend(rest.bytes());
    }
    String::from_utf8(bytes).ok()
}

impl FromStr for NetworkPolicies {
    type Err = InvalidPolicyText;

    fn from_str(text: &str) -> Result<Self, InvalidPolicyText> {
        let mut parser = Parser::default();
        for (index, line) in text.lines().enumerate() {
            parser.line(line).ok_or_else(|| InvalidPolicyText {
                line: index + 1,
                text: line.chars().take(SHOWN).collect(),
            })?;
        }
        Ok(parser.found)
    }
}

/// The policies of the lines before, and the direction to which the next rules belong.
#[derive(Default)]
struct Parser {
    found: NetworkPolicies,
    direction: Option<PolicyDirection>,
}

impl Parser {
    /// Parses the next line; `None` if it is invalid.
    fn line(&mut self, line: &str) -> Option<()> {
        let words: Vec<&str> = line.split(' ').collect();
        match *words.as_slice() {
            ["group", name, prefixes] => {
                let prefixes: Option<BTreeSet<Cidr>> = items(prefixes).map(parse).collect();
                self.found.groups.insert(unescape(name)?, prefixes?);
            }
            ["policy", name] => {
                self.direction = None;
                self.found.policies.push(NetworkPolicy {
                    name: unescape(name)?,
                    pods: BTreeSet::new(),
                    ingress: None,
                    egress: None,
                });
            }
            ["pod", namespace, name] => {
                let (namespace, name) = (unescape(namespace)?, unescape(name)?);
                self.select(PodSelector::Name(PodName { namespace, name }))?;
            }
            ["prefix", prefix] => self.select(PodSelector::Prefix(parse(prefix)?))?,
            ["ingress"] => self.begin(PolicyDirection::Ingress)?,
            ["egress"] => self.begin(PolicyDirection::Egress)?,
            ["rule", peers, ports] => {
                let direction = self.direction?;
                let rule = rule(peers, ports)?;
                self.rules(direction)?.as_mut()?.push(rule);
            }
            _ => return None,
        }
        Some(())
    }

    fn select(&mut self, selector: PodSelector) -> Option<()> {
        self.found.policies.last_mut()?.pods.insert(selector);
        Some(())
    }

    fn begin(&mut self, direction: PolicyDirection) -> Option<()> {
        self.direction = Some(direction);
        *self.rules(direction)? = Some(Vec::new());
        Some(())
    }

    fn rules(&mut self, direction: PolicyDirection) -> Option<&mut Option<Vec<PolicyRule>>> {
        let policy = self.found.policies.last_mut()?;
        Some(match direction {
            PolicyDirection::Ingress => &mut policy.ingress,
            PolicyDirection::Egress => &mut policy.egress,
        })
    }
}

fn rule(peers: &str, ports: &str) -> Option<PolicyRule> {
    let peers = match peers {
        EVERY => None,
        some => Some(items(some).map(peer).collect::<Option<_>>()?),
    };
    let ports = items(ports).map(port).collect::<Option<_>>()?;
    Some(PolicyRule { peers, ports })
}

fn peer(text: &str) -> Option<PolicyPeer> {
    if let Some(name) = text.strip_prefix('@') {
        return unescape(name).map(PolicyPeer::Group);
    }
    let mut prefixes = text.split('!').map(parse);
    let cidr = prefixes.next()??;
    let except = prefixes.collect::<Option<_>>()?;
    Some(PolicyPeer::Block { cidr, except })
}

fn port(text: &str) -> Option<PolicyPort> {
    let Some((protocol, ports)) = text.split_once(':') else {
        let protocol: Protocol = parse(text)?;
        return Some(PolicyPort {
            protocol,
            ports: None,
        });
    };
    let (first, last) = ports.split_once('-')?;
    Some(PolicyPort {
        protocol: parse(protocol)?,
        ports: Some((parse(first)?, parse(last)?)),
    })
}

fn items(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').filter(|item| !item.is_empty())
}

fn parse<T: FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

#[cfg(test)]
mod tests;
