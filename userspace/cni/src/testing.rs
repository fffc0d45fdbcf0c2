//! Fuzzing entry points: every parser of this crate, for the fuzz targets and for replaying their
//! corpus.
//!
//! The only guarantee is that they return.

use crate::{
    Cached, Command, Environment, FileKind, ForeignLease, IpamRequest, NetworkList, Plugin,
    PluginResult, Request, Version,
};

/// Parses a request: plugin name, command and `CNI_ARGS` in the first line, the configuration after
/// it.
pub fn request(text: &str) {
    let (line, config) = text.split_once('\n').unwrap_or((text, ""));
    let mut words = line.splitn(3, ' ');
    let plugin = Plugin::of_program(words.next().unwrap_or_default());
    let Ok(command) = words.next().unwrap_or_default().parse::<Command>() else {
        return;
    };
    let environment = Environment {
        command,
        container_id: "c1".to_owned(),
        netns: "/run/netns/c1".to_owned(),
        ifname: "eth0".to_owned(),
        args: words.next().unwrap_or_default().to_owned(),
        path: "/opt/cni/bin".to_owned(),
    };
    match Request::read(plugin, &environment, config) {
        Ok(Request::Add(mut add)) => {
            let _ = add.add_annotated_ports("ports");
            let _ = crate::intent(&add, None);
            add.lease = ForeignLease::parse(config).ok();
            let _ = crate::intent(&add, None);
            add.prev_result.iter().for_each(every_version);
        }
        Ok(Request::Chained(chained)) => {
            let _ = chained.adoption();
            chained.prev_result.iter().for_each(every_version);
        }
        Ok(Request::Del(_) | Request::Check(_) | Request::Gc(_) | Request::Status(_)) | Err(_) => {}
    }
    let _ = IpamRequest::read(&environment, config);
}

/// Parses any other text: lists, delegates, cached results, IPAM results and plugin results.
///
/// # Panics
/// If a list or a result is not parsed back as it was printed; except for one that may nest more
/// deeply than the parser accepts, because some are printed deeper than they were parsed.
pub fn texts(text: &str) {
    for kind in [FileKind::List, FileKind::Single] {
        if let Ok(list) = NetworkList::parse(kind, text) {
            let printed = list.to_json();
            let again = NetworkList::parse(FileKind::List, &printed);
            assert!(
                is_deep(&printed) || again.is_ok_and(|again| again == list),
                "a printed list parses as the same list"
            );
        }
    }
    if let Ok(own) = "eth0".parse() {
        let _ = crate::delegates(text, &own);
    }
    if let Ok(cached) = Cached::parse(text) {
        let _ = cached.network_status();
    }
    let _ = ForeignLease::parse(text);
    if let Ok(prev_result) = PluginResult::parse(text) {
        every_version(&prev_result);
        every_version(&prev_result.clone().with_earlier(&prev_result));
    }
}

fn is_deep(text: &str) -> bool {
    text.matches(['[', '{']).count() > 127
}

fn every_version(prev_result: &PluginResult) {
    for version in Version::ALL {
        let Ok(text) = prev_result.to_json(version) else {
            continue;
        };
        assert!(
            is_deep(&text) || PluginResult::parse(&text).is_ok(),
            "a printed result parses"
        );
    }
}
