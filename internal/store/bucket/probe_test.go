package bucket_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/bucket/buckettest"
)

// checksFailed returns the names of failed checks.
func checksFailed(r *bucket.Report) string {
	var names []string
	for _, c := range r.Checks {
		if !c.OK {
			names = append(names, c.Name)
		}
	}
	return strings.Join(names, " ")
}

// Each broken promise is refused, by the check that is meant for it.
func TestProbeRefuses(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		faults buckettest.Faults
		check  string // one of the failed checks
	}{
		"none":              {buckettest.Faults{}, ""},
		"ignored condition": {buckettest.Faults{IgnoredCondition: true}, "create"},
		"two winners":       {buckettest.Faults{TwoWinners: .02}, "create"},
		"stale reads":       {buckettest.Faults{StaleReads: .05}, "read after write"},
		"cached misses":     {buckettest.Faults{CachedMisses: time.Second}, "read after write"},
		"truncated":         {buckettest.Faults{Truncated: .1}, "read after write"},
		"flipped":           {buckettest.Faults{Flipped: .1}, "read after write"},
		"ignored checksum":  {buckettest.Faults{IgnoredChecksum: true}, "checksums"},
		"ignored range":     {buckettest.Faults{IgnoredRange: true}, "ranges"},
		"ignored delete":    {buckettest.Faults{IgnoredDelete: true}, "delete"},
		"unsorted list":     {buckettest.Faults{UnsortedList: true}, "list"},
		"late list":         {buckettest.Faults{LateList: .3}, "list"},
		"clock":             {buckettest.Faults{ClockSkew: -20 * time.Minute}, "clock"},
		"proxy":             {buckettest.Faults{Proxy: "Via: 1.1 cache"}, "proxies"},
	} {
		for seed := range uint64(2) {
			b := buckettest.NewMemory(seed)
			b.SetFaults(test.faults)
			report, err := bucket.Probe(t.Context(), b, bucket.ProbeOptions{Thorough: test.check == "create"})
			failed := checksFailed(report)
			if test.check == "" {
				if err != nil || failed != "" {
					t.Errorf("%s: Probe = %v, failed %q, want success", name, err, failed)
				}
				if keys := b.Keys(); len(keys) > 0 {
					t.Errorf("%s: Probe left %q", name, keys)
				}
				continue
			}
			if !fault.Is(err, fault.Invalid) || !strings.Contains(failed, test.check) ||
				!strings.Contains(err.Error(), test.check) {
				t.Errorf("%s, seed %d: Probe = %v, failed %q, want %q", name, seed, err, failed, test.check)
			}
		}
	}
}

// Ordinary faults are not broken promises: the probe passes, or says that the storage is not available.
func TestProbeWithOrdinaryFaults(t *testing.T) {
	t.Parallel()
	passed := 0
	for seed := range uint64(20) {
		b := buckettest.NewMemory(seed)
		b.SetFaults(buckettest.Faults{LostAnswers: .002, LateWrites: .002, DoubledWrites: .002, FailedReads: .002})
		_, err := bucket.Probe(t.Context(), b, bucket.ProbeOptions{})
		if err == nil {
			passed++
		} else if !fault.Is(err, fault.Unavailable) {
			t.Errorf("seed %d: Probe = %v, want nil or Unavailable", seed, err)
		}
	}
	if passed < 4 {
		t.Errorf("%d of 20 probes passed, want some", passed)
	}
	b := buckettest.NewMemory(1)
	b.SetFaults(buckettest.Faults{Down: true})
	r, err := bucket.Probe(t.Context(), b, bucket.ProbeOptions{})
	if !fault.Is(err, fault.Unavailable) || len(r.Checks) != 1 {
		t.Errorf("Probe = %+v, %v, want one failed check and Unavailable", r, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := bucket.Probe(ctx, buckettest.NewMemory(1), bucket.ProbeOptions{}); !fault.Is(err, fault.Cancelled) {
		t.Errorf("cancelled Probe = %v, want Cancelled", err)
	}
}

// A probe removes what a killed one left behind, and leaves a running one alone.
func TestProbeRemovesLeftovers(t *testing.T) {
	t.Parallel()
	b := buckettest.NewMemory(1)
	b.SetFaults(buckettest.Faults{ClockSkew: -25 * time.Hour}) // of the time at which the object is stored
	b.Set("probe/OLD/race", []byte("x"))
	b.SetFaults(buckettest.Faults{})
	b.Set("probe/RUNNING/race", []byte("x"))
	if _, err := bucket.Probe(t.Context(), b, bucket.ProbeOptions{}); err != nil {
		t.Fatal(err)
	}
	if keys := b.Keys(); len(keys) != 1 || keys[0] != "probe/RUNNING/race" {
		t.Errorf("keys = %q, want those of the running probe", keys)
	}
}
