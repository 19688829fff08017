package config

import (
	"strings"
	"testing"
)

// TestCgroupLimits checks limits with which no process could run.
func TestCgroupLimits(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(c *CgroupConfig){
		"cgroup.pack.cpu_weight is 0;":       func(c *CgroupConfig) { c.Pack.CPUWeight = 0 },
		"cgroup.server.cpu_weight is 10001;": func(c *CgroupConfig) { c.Server.CPUWeight = 10001 },
		"cgroup.search.memory_max is 1MiB;":  func(c *CgroupConfig) { c.Search.MemoryMax = 1 << 20 },
		"cgroup.other.memory_high is 1;":     func(c *CgroupConfig) { c.Other.MemoryHigh = 1 },
		"cgroup.receive.memory_high is 2GiB,": func(c *CgroupConfig) {
			c.Receive.MemoryHigh, c.Receive.MemoryMax = 2<<30, 1<<30
		},
	} {
		c := DefaultConfig()
		if err := c.Check(); err != nil {
			t.Errorf("Check() of the defaults = %v, want no error", err)
		}
		change(&c.Cgroup)
		if err := c.Check(); err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("Check() = %v, want one mistake that begins with %q", err, want)
		}
	}
}
