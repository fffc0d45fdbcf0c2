//! Executes one chained plugin of a list again, for an attachment that exists.

use cni::{Cached, Command, Error, NetworkList, PluginConfig};

use crate::{Invoker, RuntimeConf, execute, named};

impl Invoker {
    /// Executes a command of one plugin of a list for a cached attachment, by the program of this
    /// name. The plugin gets the cached result as `prevResult`, and the arguments of the ADD.
    pub fn chained(
        &self,
        command: Command,
        program: &str,
        (list, plugin): (&NetworkList, &PluginConfig),
        cached: &Cached,
    ) -> Result<(), Error> {
        let attachment = RuntimeConf {
            container_id: cached.container_id.clone(),
            ifname: cached.ifname.clone(),
            netns: cached.netns.clone(),
            args: cached.args.clone(),
            capabilities: cached.capabilities.clone(),
        };
        let config = list.config_for(plugin, Some(&cached.result), &cached.capabilities);
        let environment = execute::environment(command, Some(&attachment), &self.path)?;
        let timeout = self.timeouts.of(command);
        execute::run(&self.find(program)?, &environment, &config, timeout)
            .map(drop)
            .map_err(|error| named(program, error))
    }
}
