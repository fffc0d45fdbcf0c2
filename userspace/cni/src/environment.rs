//! The `CNI_*` environment variables. Refuses to know where they come from: a process's environment, or a request of
//! the API that carries them.

use std::ffi::OsString;
use std::str::FromStr;

use model::{ContainerId, IfName};

use crate::Error;

/// What a runtime wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Command {
    /// Make an attachment.
    Add,
    /// Remove an attachment.
    Del,
    /// Compare an attachment with what ADD returned.
    Check,
    /// Remove attachments that the runtime does not know.
    Gc,
    /// Tell whether an ADD would work.
    Status,
    /// Tell the supported versions.
    Version,
}

impl Command {
    /// As in `CNI_COMMAND`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
            Self::Check => "CHECK",
            Self::Gc => "GC",
            Self::Status => "STATUS",
            Self::Version => "VERSION",
        }
    }
}

impl FromStr for Command {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "ADD" => Ok(Self::Add),
            "DEL" => Ok(Self::Del),
            "CHECK" => Ok(Self::Check),
            "GC" => Ok(Self::Gc),
            "STATUS" => Ok(Self::Status),
            "VERSION" => Ok(Self::Version),
            _ => Err(Error::environment(format!("unknown CNI_COMMAND: {text}"))),
        }
    }
}

/// The parameters of a command; one that was not given is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    /// `CNI_COMMAND`.
    pub command: Command,
    /// `CNI_CONTAINERID`.
    pub container_id: String,
    /// `CNI_NETNS`.
    pub netns: String,
    /// `CNI_IFNAME`.
    pub ifname: String,
    /// `CNI_ARGS`.
    pub args: String,
    /// `CNI_PATH`.
    pub path: String,
}

impl Environment {
    /// Reads the variables by `var`; `None` when there is no `CNI_COMMAND`, which is a person looking around.
    pub fn read(var: impl Fn(&str) -> Option<OsString>) -> Result<Option<Self>, Error> {
        let text = |name: &str| match var(name).unwrap_or_default().into_string() {
            Ok(text) => Ok(text),
            Err(_) => Err(Error::environment(format!("{name} is not UTF-8"))),
        };
        let command = text("CNI_COMMAND")?;
        if command.is_empty() {
            return Ok(None);
        }
        let environment = Self {
            command: command.parse()?,
            container_id: text("CNI_CONTAINERID")?,
            netns: text("CNI_NETNS")?,
            ifname: text("CNI_IFNAME")?,
            args: text("CNI_ARGS")?,
            path: text("CNI_PATH")?,
        };
        environment.check()?;
        Ok(Some(environment))
    }

    /// Whether everything that the command needs is there and well-formed (behaviours S2, S3).
    pub fn check(&self) -> Result<(), Error> {
        let attachment = matches!(self.command, Command::Add | Command::Del | Command::Check);
        let netns = matches!(self.command, Command::Add | Command::Check);
        let required = [
            ("CNI_CONTAINERID", &self.container_id, attachment),
            ("CNI_NETNS", &self.netns, netns),
            ("CNI_IFNAME", &self.ifname, attachment),
            ("CNI_PATH", &self.path, self.command != Command::Version),
        ];
        let missing: Vec<_> = required
            .iter()
            .filter(|(_, value, required)| *required && value.is_empty())
            .map(|(name, ..)| *name)
            .collect();
        if !missing.is_empty() {
            return Err(Error::environment(format!(
                "required env variables [{}] missing",
                missing.join(",")
            )));
        }
        if attachment {
            self.container_id()?;
            self.ifname()?;
        }
        Ok(())
    }

    pub(crate) fn container_id(&self) -> Result<ContainerId, Error> {
        variable("CNI_CONTAINERID", &self.container_id)
    }

    pub(crate) fn ifname(&self) -> Result<IfName, Error> {
        variable("CNI_IFNAME", &self.ifname)
    }
}

/// A variable as a type of its own.
pub(crate) fn variable<T>(name: &str, value: &str) -> Result<T, Error>
where
    T: FromStr<Err = model::InvalidName>,
{
    let parsed = value.parse();
    parsed.map_err(|error| Error::environment(format!("{name}: {error}")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<Environment>, Error> {
        Environment::read(|name| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| OsString::from(value))
        })
    }

    fn message(variables: &[(&str, &str)]) -> String {
        let error = read(variables).unwrap_err();
        assert_eq!(error.code, 4);
        error.msg
    }

    /// behaviour S1
    #[test]
    fn no_command_is_a_person_looking_around() {
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[("CNI_COMMAND", "")]), Ok(None));
    }

    /// behaviour S1
    #[test]
    fn an_unknown_command_is_code_4() {
        assert_eq!(
            message(&[("CNI_COMMAND", "FROB")]),
            "unknown CNI_COMMAND: FROB"
        );
    }

    /// behaviour S2
    #[test]
    fn each_command_names_the_variables_that_it_misses() {
        for (command, missing) in [
            ("ADD", "CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH"),
            ("CHECK", "CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH"),
            ("DEL", "CNI_CONTAINERID,CNI_IFNAME,CNI_PATH"),
            ("GC", "CNI_PATH"),
            ("STATUS", "CNI_PATH"),
        ] {
            assert_eq!(
                message(&[("CNI_COMMAND", command)]),
                format!("required env variables [{missing}] missing")
            );
        }
        assert!(read(&[("CNI_COMMAND", "VERSION")]).is_ok());
    }

    /// behaviour S3
    #[test]
    fn names_that_no_container_or_interface_can_have_are_code_4() {
        let del = |id, ifname| {
            message(&[
                ("CNI_COMMAND", "DEL"),
                ("CNI_CONTAINERID", id),
                ("CNI_IFNAME", ifname),
                ("CNI_PATH", "/opt/cni/bin"),
            ])
        };
        assert!(del("-x", "eth0").starts_with("CNI_CONTAINERID: invalid container ID"));
        assert!(del("a/b", "eth0").contains("may hold only letters"));
        assert!(del("a", "eth/0").starts_with("CNI_IFNAME: invalid interface name"));
        assert!(del("a", "sixteen-bytes-xx").contains("longer than 15 bytes"));
        assert!(del("a", "..").contains("must not be '.' or '..'"));
    }

    /// behaviour S10
    #[test]
    fn a_del_needs_no_network_namespace() {
        let environment = read(&[
            ("CNI_COMMAND", "DEL"),
            ("CNI_CONTAINERID", "a"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", "/opt/cni/bin"),
        ]);
        assert_eq!(environment.unwrap().unwrap().netns, "");
    }

    #[test]
    fn a_variable_that_is_no_text_is_named() {
        let error = Environment::read(|_| Some(OsString::from_vec(vec![0xff]))).unwrap_err();
        assert_eq!(
            (error.code, error.msg.as_str()),
            (4, "CNI_COMMAND is not UTF-8")
        );
    }
}
