//! Parser of `CNI_ARGS` (`K=V;K=V`).
//!
//! This is the oldest way to pass per-attachment settings; `args.cni` and `runtimeConfig` of the
//! configuration override it.

use std::net::IpAddr;

use model::{Mac, PodName};

use crate::Error;
use crate::config::limits;
use crate::values::{RequestedAddress, parse_address, parse_mac, parse_requested_address};

/// The arguments that Viaduct evaluates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Args {
    /// `IP`: requested addresses; Multus separates them by commas.
    pub(crate) addresses: Vec<RequestedAddress>,
    /// `GATEWAY`: gateways of static addresses.
    pub(crate) gateways: Vec<IpAddr>,
    /// `MAC`: MAC address of the pod's end.
    pub(crate) mac: Option<Mac>,
    /// `K8S_POD_NAMESPACE` and `K8S_POD_NAME`; `None` unless both are set.
    pub(crate) pod: Option<PodName>,
}

impl Args {
    /// Parses the variable. An unknown key is an error unless `IgnoreUnknown` is set (behaviour
    /// S16).
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        Self::parse_own(text, |_| true)
    }

    /// Parses the variable for host-local, which has `IP` alone. As with the reference, values of
    /// other keys are not looked at, and without `IgnoreUnknown` any such key is an error.
    pub(crate) fn parse_for_host_local(text: &str) -> Result<Self, Error> {
        Self::parse_own(text, |key| key == "IP")
    }

    fn parse_own(text: &str, is_own: impl Fn(&str) -> bool) -> Result<Self, Error> {
        let mut args = Self::default();
        let mut pod = (None, None);
        let mut unknown = Vec::new();
        let mut ignore_unknown = false;
        for pair in text.split(';').filter(|pair| !pair.is_empty()) {
            // Split once: a value may hold a "=".
            let Some((key, value)) = pair.split_once('=') else {
                return Err(error(format!("invalid pair {pair:?}")));
            };
            match key {
                "IgnoreUnknown" => ignore_unknown = flag(value)?,
                _ if !is_own(key) => unknown.push(pair),
                "IP" => args.addresses = list(key, value, parse_requested_address)?,
                "GATEWAY" => args.gateways = list(key, value, parse_address)?,
                "MAC" if value.is_empty() => {}
                "MAC" => args.mac = Some(parse_mac(value).map_err(error)?),
                "K8S_POD_NAMESPACE" => pod.0 = Some(value),
                "K8S_POD_NAME" => pod.1 = Some(value),
                _ if is_known(key) => {}
                _ => unknown.push(pair),
            }
        }
        if !unknown.is_empty() && !ignore_unknown {
            return Err(error(format!("unknown args {unknown:?}")));
        }
        args.pod = pod_name(pod.0, pod.1);
        Ok(args)
    }
}

/// Returns the pod's name in `CNI_ARGS`, without a check of other pairs: for events, and for a
/// plugin that uses no arguments, where the reference plugins do not parse the variable.
pub fn pod_of(text: &str) -> Option<PodName> {
    let value = |key: &str| {
        let mut pairs = text.split(';').filter_map(|pair| pair.split_once('='));
        pairs.find_map(|(name, value)| (name == key).then_some(value))
    };
    pod_name(value("K8S_POD_NAMESPACE"), value("K8S_POD_NAME"))
}

/// Returns whether a key is valid although it has no effect here: keys of Kubernetes, Nomad,
/// nerdctl.
fn is_known(key: &str) -> bool {
    matches!(key, "K8S_POD_INFRA_CONTAINER_ID" | "K8S_POD_UID")
        || key.starts_with("NOMAD_")
        || key.starts_with("NERDCTL_")
}

fn pod_name(namespace: Option<&str>, name: Option<&str>) -> Option<PodName> {
    let named = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(str::to_owned);
    Some(PodName {
        namespace: named(namespace)?,
        name: named(name)?,
    })
}

fn list<T>(
    key: &str,
    value: &str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, Error> {
    let parts: Vec<&str> = value
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .collect();
    let (number, most) = (parts.len(), limits::ADDRESSES);
    if number > most {
        return Err(error(format!("{key}: {number} entries, more than {most}")));
    }
    let parsed = parts.into_iter().map(parse);
    parsed.collect::<Result<_, _>>().map_err(error)
}

fn flag(value: &str) -> Result<bool, Error> {
    match value {
        "1" | "true" | "True" | "TRUE" => Ok(true),
        "0" | "false" | "False" | "FALSE" => Ok(false),
        _ => Err(error(format!("IgnoreUnknown is not a boolean: {value:?}"))),
    }
}

fn error(why: impl std::fmt::Display) -> Error {
    Error::environment(format!("CNI_ARGS: {why}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// behaviours S16, C1
    #[test]
    fn cni_args_of_containerd_name_the_pod() {
        let args = Args::parse(
            "K8S_POD_INFRA_CONTAINER_ID=0f;K8S_POD_UID=u;IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web-0",
        );
        let pod = args.unwrap().pod.unwrap();
        assert_eq!(pod.to_string(), "ns/web-0");
    }

    /// behaviour S16
    #[test]
    fn an_unknown_cni_args_key_is_an_error_without_ignore_unknown() {
        let error = Args::parse("FOO=bar;BAR=").unwrap_err();
        assert_eq!(error.code, 4);
        assert_eq!(error.msg, r#"CNI_ARGS: unknown args ["FOO=bar", "BAR="]"#);
        for yes in ["1", "true", "True"] {
            assert!(Args::parse(&format!("FOO=bar;IgnoreUnknown={yes}")).is_ok());
        }
        for no in ["0", "false"] {
            assert!(Args::parse(&format!("FOO=bar;IgnoreUnknown={no}")).is_err());
        }
        assert!(Args::parse("IgnoreUnknown=perhaps").is_err());
    }

    /// behaviour S16
    #[test]
    fn host_local_evaluates_the_address_alone_and_knows_no_other_key() {
        let parse = Args::parse_for_host_local;
        let odd = "MAC=odd;GATEWAY=odd;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web-0";
        let args = parse(&format!("IgnoreUnknown=1;{odd};IP=10.1.0.9")).unwrap();
        assert_eq!(args.addresses.len(), 1);
        let rest = Args {
            addresses: Vec::new(),
            ..args
        };
        assert_eq!(rest, Args::default());
        for other in odd.split(';') {
            let error = parse(other).unwrap_err();
            assert_eq!(error.msg, format!("CNI_ARGS: unknown args {:?}", [other]));
        }
        assert_eq!(parse("IgnoreUnknown=1;IP=odd").unwrap_err().code, 4);
    }

    /// behaviours S16, C14
    #[test]
    fn cni_args_request_addresses_and_a_mac() {
        let args = Args::parse("IP=10.1.0.9,fd00::9;MAC=02:00:00:00:00:01").unwrap();
        assert_eq!(args.addresses.len(), 2);
        assert_eq!(args.mac, "02:00:00:00:00:01".parse().ok());
        assert_eq!(Args::parse("IP=;MAC=;").unwrap(), Args::default());
    }

    /// behaviours S16, C9
    #[test]
    fn a_cni_args_value_may_contain_an_equals_sign_and_keys_of_orchestrators_are_known() {
        assert!(Args::parse("NOMAD_GROUP_NAME=a=b;NERDCTL_X=;K8S_POD_NAME=a=b").is_ok());
        assert!(Args::parse("nonsense").is_err());
    }

    /// behaviour S16
    #[test]
    fn the_pods_name_is_found_in_cni_args_that_are_not_checked() {
        assert_eq!(pod_of("none"), None);
        assert_eq!(pod_of("FOO=bar;K8S_POD_NAME=web;;x"), None);
        let pod = pod_of("none;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web-0;FOO=bar");
        assert_eq!(pod.unwrap().to_string(), "ns/web-0");
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text: String) {
            let _ = Args::parse(&text);
        }
    }
}
