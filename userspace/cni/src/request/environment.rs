//! The `CNI_*` environment variables.
//!
//! The values may come from a process's environment, or from a request of the agent's API.

use std::ffi::OsString;
use std::str::FromStr;

use model::{ContainerId, IfName};

use crate::Error;

/// `CNI_COMMAND`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Command {
    /// Creates an attachment.
    Add,
    /// Removes an attachment.
    Del,
    /// Compares an attachment with the result of its ADD.
    Check,
    /// Removes attachments that are not in the runtime's list.
    Gc,
    /// Reports whether an ADD would succeed.
    Status,
    /// Reports the supported protocol versions.
    Version,
}

impl Command {
    /// Returns the value of `CNI_COMMAND`.
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

/// The parameters of a command; a variable that is not set is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    /// `CNI_COMMAND`: the command.
    pub command: Command,
    /// `CNI_CONTAINERID`: the container's ID.
    pub container_id: String,
    /// `CNI_NETNS`: path of the container's network namespace.
    pub netns: String,
    /// `CNI_IFNAME`: the interface's name in the container.
    pub ifname: String,
    /// `CNI_ARGS`: `key=value` pairs, separated by semicolons.
    pub args: String,
    /// `CNI_PATH`: directories of plugins, separated by colons.
    pub path: String,
}

impl Environment {
    /// Reads the variables with `var`. Returns `None` without `CNI_COMMAND`: the program was
    /// started by hand, not by a runtime.
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

    /// Fails if a variable that the command requires is missing or malformed (behaviours S2, S3).
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

/// Parses a variable's value; the error has code 4 and names the variable.
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
    fn without_cni_command_there_is_no_request() {
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
    fn each_command_names_its_missing_variables() {
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
    fn a_variable_that_is_not_utf_8_is_named() {
        let error = Environment::read(|_| Some(OsString::from_vec(vec![0xff]))).unwrap_err();
        assert_eq!(
            (error.code, error.msg.as_str()),
            (4, "CNI_COMMAND is not UTF-8")
        );
    }
}
