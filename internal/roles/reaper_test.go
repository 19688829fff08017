package roles

import (
	"bytes"
	"context"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestReaperCommand has a reaper turned off, and one that nobody's server started.
func TestReaperCommand(t *testing.T) {
	t.Parallel()
	cfg := DefaultConfig()
	if got := cfg.reaper("/bin/packhorse"); !slices.Equal(got, []string{"/bin/packhorse", "reaper", "auto"}) {
		t.Errorf("the reaper is %q", got)
	}
	if cfg.reaper("") != nil {
		t.Error("a reaper without a program")
	}
	cfg.Git.Reaper = false
	if cfg.reaper("/bin/packhorse") != nil {
		t.Error("a reaper that was turned off")
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, env := range []Env{{Args: []string{"reaper", "auto"}, Stdin: strings.NewReader("")}, {Args: []string{"reaper", "auto"}, Stdin: null}, {Args: []string{"reaper"}}} {
		var errs bytes.Buffer
		env.Stdout, env.Stderr = &errs, &errs
		if code := Main(context.Background(), env); code != exitUsage {
			t.Errorf("exit %d: %s", code, &errs)
		}
	}
}

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
