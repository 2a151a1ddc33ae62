"""Real ranks on a real, slow network on one machine: hosts in namespaces, veth links, `tc tbf`."""
