package config

import (
	"testing"
)

// TestCgroupNumbers has limits with which nothing could run.
func TestCgroupNumbers(t *testing.T) {
	t.Parallel()
	for _, change := range []func(c *CgroupConfig){
		func(c *CgroupConfig) { c.Pack.CPUWeight = 0 }, func(c *CgroupConfig) { c.Server.CPUWeight = 10001 },
		func(c *CgroupConfig) { c.Search.MemoryMax = 1 << 20 }, func(c *CgroupConfig) { c.Other.MemoryHigh = 1 },
		func(c *CgroupConfig) { c.Receive.MemoryHigh, c.Receive.MemoryMax = 2<<30, 1<<30 },
	} {
		c := defaultCgroup()
		bad := 0
		c.checkNumbers(bounds{func(string, ...any) { bad++ }})
		if bad != 0 {
			t.Error("the default is wrong")
		}
		change(&c)
		c.checkNumbers(bounds{func(string, ...any) { bad++ }})
		if bad != 1 {
			t.Errorf("%d complaints about %+v", bad, c)
		}
	}
}
