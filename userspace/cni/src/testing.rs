//! Every reader of this crate behind one function, for fuzzing and for replaying what fuzzing began with. Nothing is
//! promised but that they return.

use crate::{
    Cached, Command, Environment, FileKind, ForeignLease, IpamRequest, NetworkList, PassedResult,
    Plugin, Request, Version,
};

/// A request: the plugin's name, the command and `CNI_ARGS` in the first line, the configuration behind it.
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
            let _ = add.publish_annotated("ports");
            let _ = crate::intent(&add, None);
            add.lease = ForeignLease::parse(config).ok();
            let _ = crate::intent(&add, None);
            add.passed.iter().for_each(every_version);
        }
        Ok(Request::Chained(chained)) => {
            let _ = chained.adoption();
            chained.passed.iter().for_each(every_version);
        }
        Ok(Request::Del(_) | Request::Check(_) | Request::Gc(_) | Request::Status(_)) | Err(_) => {}
    }
    let _ = IpamRequest::read(&environment, config);
}

/// Any other text.
///
/// # Panics
/// Where a reader breaks one of them: that is what it is for.
pub fn texts(text: &str) {
    for kind in [FileKind::List, FileKind::Single] {
        if let Ok(list) = NetworkList::parse(kind, text) {
            let again = NetworkList::parse(FileKind::List, &list.to_json());
            assert!(
                again.is_ok_and(|again| again == list),
                "a list is written as it is read"
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
    if let Ok(passed) = PassedResult::parse(text) {
        every_version(&passed);
        every_version(&passed.clone().before(&passed));
    }
}

fn every_version(passed: &PassedResult) {
    for version in Version::ALL {
        let Ok(text) = passed.to_json(version) else {
            continue;
        };
        assert!(
            PassedResult::parse(&text).is_ok(),
            "a result is written as it is read"
        );
    }
}
