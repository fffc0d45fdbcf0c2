//! Settings of name resolution, which a result passes on.

use crate::Error;
use crate::json::Object;

/// Resolver settings. Viaduct resolves no names: results repeat the settings of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dns {
    /// Addresses of name servers, as the configuration spells them.
    pub nameservers: Vec<String>,
    /// The local domain name.
    pub domain: Option<String>,
    /// Search list.
    pub search: Vec<String>,
    /// Resolver options, such as `ndots:5`.
    pub options: Vec<String>,
}

impl Dns {
    /// Parses a file in the format of `resolv.conf(5)`; unknown keywords are skipped.
    pub fn of_resolv_conf(text: &str) -> Self {
        let mut dns = Self::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let keyword = words.next().unwrap_or_default();
            let mut values = words.map(str::to_owned);
            match keyword {
                "nameserver" => dns.nameservers.extend(values.next()),
                "domain" => dns.domain = values.next(),
                "search" => dns.search.extend(values),
                "options" => dns.options.extend(values),
                _ => {}
            }
        }
        dns
    }

    /// Returns these settings, or those of the `ipam` if these are empty (behaviour R6).
    #[must_use]
    pub fn or(self, ipam: Self) -> Self {
        if self == Self::default() { ipam } else { self }
    }

    pub(crate) fn read(config: &Object<'_>) -> Result<Self, Error> {
        let Some(dns) = config.object("dns")? else {
            return Ok(Self::default());
        };
        Ok(Self {
            nameservers: dns.texts("nameservers")?,
            domain: dns.text("domain")?.map(str::to_owned),
            search: dns.texts("search")?,
            options: dns.texts("options")?,
        })
    }
}
