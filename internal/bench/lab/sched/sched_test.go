package sched

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/packhorse-git/packhorse/internal/bench/benchtest"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

var update = flag.Bool("update", false, "write testdata anew")

// sched runs the command and returns its rows.
func sched(t *testing.T, args ...string) []schedRow {
	t.Helper()
	out, errs, err := benchtest.Run(t, t.Context(), append([]string{"sched", "--json"}, args...)...)
	if err != nil {
		t.Fatalf("%q: %v\n%s", args, err, errs)
	}
	var r schedReport
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	return r.Rows
}

// erlangC is the probability that a request waits in M/M/c.
func erlangC(c int, load float64) float64 {
	term, sum := 1.0, 0.0
	for k := range c {
		sum += term
		term *= float64(c) * load / float64(k+1)
	}
	term /= 1 - load
	return term / (sum + term)
}

// gim1 returns the mean time in E_k/M/1 in service times: 1/(1-x), where x is the root of x = A(1-x), and A is the
// transform of the gaps.
func gim1(k int, load float64) float64 {
	x, a := 0.5, float64(k)*load
	for range 1000 {
		x = math.Pow(a/(a+1-x), float64(k))
	}
	return 1 / (1 - x)
}

// Means are compared with queueing theory. Seeds are fixed, so that errors are the same in each run.
func TestSchedExact(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	for _, test := range []struct {
		name string
		mean float64 // in service times
		args string
	}{
		{"M/M/1-PS", 1 / (1 - 0.6), "--workers 1 --slots 100 --load 0.6 --distribution exponential --policies random"},
		{"M/G/1-PS knows but the mean", 1 / (1 - 0.5),
			"--workers 1 --slots 100 --load 0.5 --distribution lognormal:1 --policies random"},
		{"M/D/1-PS", 1 / (1 - 0.6), "--workers 1 --slots 100 --load 0.6 --policies least-busy"},
		{"M/D/1", 1 + 0.7/(2*(1-0.7)),
			"--workers 1 --slots 1 --load 0.7 --policies random,oracle,puma-delay,packhorse,packhorse:1"},
		{"M/M/1", 1 / (1 - 0.6),
			"--workers 1 --slots 1 --load 0.6 --distribution exponential --policies least-busy,packhorse"},
		{"M/M/4", 1 + erlangC(4, 0.7)/(4*(1-0.7)),
			"--workers 4 --slots 1 --load 0.7 --distribution exponential --policies random,packhorse"},
		{"M/M/4, one slot used", 1 + erlangC(4, 0.7)/(4*(1-0.7)),
			"--workers 4 --slots 3 --load 0.7 --distribution exponential --policies packhorse:1"},
		{"M/M/4-PS: CPUs shared by workers", 1 + erlangC(4, 0.7)/(4*(1-0.7)),
			"--workers 100 --slots 1 --cpus 4 --load 0.7 --distribution exponential --policies random"},
		{"M/M/4-PS: without the lock", 1 + erlangC(4, 0.7)/(4*(1-0.7)),
			"--workers 4 --slots 50 --gvl=false --cpus 4 --load 0.7 --distribution exponential --policies least-busy"},
		{"E4/M/1, four times", gim1(4, 0.6),
			"--workers 4 --slots 1 --load 0.6 --distribution exponential --policies round-robin"},
		{"M/G/inf: waiting alone", 1,
			"--workers 50 --slots 20 --cpu 0 --load 0.5 --distribution lognormal --policies random,least-busy,packhorse:100"},
		{"M/G/inf: the oracle, which looks at all of it at each step", 1,
			"--workers 10 --slots 20 --cpu 0 --load 0.5 --distribution lognormal --policies oracle"},
		{"M/M/4: waiting alone, in 4 slots", 1 + erlangC(4, 0.7)/(4*(1-0.7)),
			"--workers 2 --slots 2 --cpu 0 --load 0.7 --distribution exponential --policies random"},
		{"all slots busy", 2, "--workers 8 --slots 2 --arrivals closed --load 2 --policies " +
			"random,puma-delay,least-busy,oracle,packhorse:100"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			for _, row := range sched(t, append(strings.Fields(test.args), "--requests", "40000")...) {
				if off := row.Saturation/test.mean - 1; math.Abs(off) > 0.04 {
					t.Errorf("%s: %v, which is %+.1f %% off %v", row.Policy, row.Saturation, 100*off, test.mean)
				}
			}
		})
	}
}

// TestSchedShape checks the result of the study. With a lock and several slots, accepting at random costs a fifth of
// the latency at loads of about 40 %, and more with more slots. It costs little if the workers are almost idle, and
// nothing if all are busy. Policies that prefer a free worker lose almost nothing.
func TestSchedShape(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	within := func(policy string, low, high float64, args string) {
		t.Helper()
		for _, row := range sched(t, append(strings.Fields(args), "--policies", policy)...) {
			if row.Saturation < low || row.Saturation > high {
				t.Errorf("%s %s: saturation %v, want %v to %v", policy, args, row.Saturation, low, high)
			}
		}
	}
	within(schedRandom, 1.17, 1.26, "--workers 16 --slots 2 --load 0.35..0.45:0.05")
	within(schedRandom, 1.35, 1.43, "--workers 16 --slots 4 --load 0.4")
	within(schedRandom, 1.35, 1.43, "--workers 14 --slots 4 --load 0.4")
	within(schedRandom, 1, 1.001, "--workers 30 --slots 1 --load 0.4")
	within(schedRandom, 1, 1.015, "--workers 16 --slots 2 --load 0.02")
	within(schedRandom, 1, 1.001, "--workers 16 --slots 4 --load 0.4 --gvl=false")
	within(schedRandom, 1.99, 2.01, "--workers 16 --slots 2 --load 2 --arrivals closed")
	within("packhorse:1", 1.95, 2.01, "--workers 16 --slots 2 --load 2 --arrivals closed")
	for _, policy := range []string{schedLeastBusy, schedPumaDelay, schedPackhorse, schedOracle} {
		within(policy, 1, 1.01, "--workers 16 --slots 2 --load 0.35..0.45:0.05")
	}
	// The scheduler also prevents this at the 99th percentile.
	for _, row := range sched(t, strings.Fields("--load 0.4 --policies random,packhorse")...) {
		if row.Policy == schedPackhorse && row.P99 > 150 || row.Policy == schedRandom && row.Slots > 1 && row.P99 < 190 {
			t.Errorf("%+v", row)
		}
	}
}

// No request shares a worker while another worker is idle, for any work.
func TestSchedFreeWorkerFirst(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	for _, work := range []string{"--distribution exponential", "--distribution lognormal --cpu 0.3", "--cpu 0",
		"--arrivals closed --gvl=false"} {
		for _, row := range sched(t, append(strings.Fields(work), "--policies", "packhorse,packhorse:100,packhorse:1",
			"--load", "0.1..1.0:0.45", "--requests", "1500")...) {
			if row.Shared != 0 {
				t.Errorf("%s: %+v", work, row)
			}
		}
	}
	if rows := sched(t, "--workers", "4", "--slots", "2", "--load", "0.4", "--policies", "random"); rows[0].Shared == 0 {
		t.Error("the random policy never shared while idle, want some requests")
	}
}

// No policy has a mean below that of the bound.
func TestSchedBound(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	for _, work := range []string{"--distribution exponential", "--distribution lognormal",
		"--distribution lognormal --cpu 0.4", "--cpu 0.25", "--cpu 0.5", "--cpu 0", "--arrivals closed", "--gvl=false " +
			"--distribution exponential"} {
		rows := sched(t, append(strings.Fields(work), "--policies", schedNamesList(), "--workers", "8", "--slots", "3",
			"--cpus", "6", "--load", "0.2..1.0:0.4,0.9", "--requests", "2000")...)
		for _, bound := range rows {
			for _, row := range rows {
				if bound.Policy == schedOracle && row.Workers == bound.Workers && row.Slots == bound.Slots &&
					row.Load == bound.Load && row.Mean < bound.Mean*0.999 {
					t.Errorf("%s: %+v is below %+v", work, row, bound)
				}
			}
		}
	}
}

func schedNamesList() string {
	return strings.NewReplacer(" ", "", schedSomeSlots, "packhorse:1,packhorse:3").Replace(schedNames())
}

// Every simulation ends: each request is answered, no worker has more requests than slots (start panics), and no worker
// is idle while a request waits.
func TestSchedAnything(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		o := schedOptions{
			workers: rapid.IntRange(1, 9).Draw(t, "workers"), slots: rapid.IntRange(1, 5).Draw(t, "slots"),
			cpus: rapid.IntRange(1, 9).Draw(t, "cpus"),
			gvl:  rapid.Bool().Draw(t, "gvl"), arrivals: rapid.SampledFrom([]string{"open", "closed"}).Draw(t, "arrivals"),
			load:    fmt.Sprint(rapid.SampledFrom([]float64{0.01, 0.3, 0.9, 1, 1.7}).Draw(t, "load")),
			service: rapid.SampledFrom([]time.Duration{time.Microsecond, 100e6, time.Hour}).Draw(t, "service"), delay: 5e6,
			requests:     minSchedRequests,
			distribution: rapid.SampledFrom([]string{"fixed", "exponential", "lognormal"}).Draw(t, "distribution"),
			cpu:          rapid.SampledFrom([]float64{0, 0.1, 0.5, 1}).Draw(t, "cpu"), seed: rapid.Uint64().Draw(t, "seed"),
			policies: strings.Split(schedNamesList(), ","),
		}
		if err := o.check(); err != nil {
			t.Fatal(err)
		}
		load := newSchedLoad(&o)
		for _, cell := range o.cells() {
			s, err := o.simulate(context.Background(), cell, load)
			if err != nil {
				t.Fatal(err)
			}
			if s.done != len(load.sizes) || len(s.took) != load.measured || s.inFlight != 0 || s.idle != cell.workers ||
				len(s.locks) != 0 {
				t.Fatalf("%+v: %d done, %d measured, %d in flight, %d idle", cell, s.done, len(s.took), s.inFlight, s.idle)
			}
			for i, took := range s.took {
				if took < 0 || math.IsNaN(took) {
					t.Fatalf("%+v: the %d. took %v", cell, i, took)
				}
			}
		}
	})
}

// The report as JSON has the figures. The same seed gives the same report.
func TestSchedJSON(t *testing.T) {
	t.Parallel()
	args := strings.Fields("sched --workers 4 --slots 2 --cpus 4 --load 0.5,1 --policies random,least-busy,oracle " +
		"--requests 1000 --seed 7 --json")
	out, _, err := benchtest.Run(t, t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("testdata", "sched.json")
	if *update {
		if err := os.WriteFile(file, []byte(out), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if out != string(want) {
		t.Errorf("differs from %s (write it anew with -update):\n%s", file, out)
	}
	var report struct{ Rows []map[string]any }
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"workers", "slots", "policy", "load", "mean", "p50", "p95", "p99", "saturation"} {
		if _, ok := report.Rows[0][name]; !ok {
			t.Errorf("no %s in %v", name, slices.Collect(maps.Keys(report.Rows[0])))
		}
	}
}

func TestSchedTables(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	page := filepath.Join(t.TempDir(), "page.html")
	out, errs, err := benchtest.Run(t, t.Context(), "sched", "--requests", "200", "--html", page)
	if err != nil || errs != "" {
		t.Fatal(err, errs)
	}
	if strings.Count(out, "slots each\n") != 6 || strings.Count(out, "1 slot each\n") != 1 ||
		strings.Count(out, " / ") < 7*7*10 {
		t.Errorf("table:\n%s", out)
	}
	html, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(html), "<svg"); n != 14 {
		t.Errorf("%d charts, want 14", n)
	}
	if !strings.Contains(string(html), "<title>packhorse: 1") || strings.Contains(string(html), "NaN") {
		t.Error("a dot has no value or NaN, want a value for each dot")
	}
	d := xml.NewDecoder(strings.NewReader(string(html)))
	d.Strict, d.AutoClose, d.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	for _, outside := range []string{"<script", "src=", "href=", "url(", "@import"} {
		if strings.Contains(string(html), outside) {
			t.Errorf("the page needs something else: %s", outside)
		}
	}
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Log("there is no /dev/full here")
	} else if out, _, err = benchtest.Run(t, t.Context(), "sched", "--requests", "200", "--html",
		"/dev/full"); err == nil || strings.Count(out, " / ") < 7*7*10 {
		t.Errorf("a page that cannot be written: %v\n%s", err, out)
	}
	if out, _, err = benchtest.Run(t, t.Context(), "sched", "--workers", "1", "--slots", "1", "--load", "0.5",
		"--requests", "200", "--cpu", "-0"); err != nil || !strings.Contains(out, ", 0 % of it computing") {
		t.Errorf("--cpu -0: %v\n%s", err, out)
	}
	if out, _, err = benchtest.Run(t, t.Context(), "sched", "--workers", "1", "--slots", "1", "--load", "0.5",
		"--requests", "200"); err != nil || strings.Count(out, "\n") != 2+1+7 {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestSchedRefuses(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"--workers 2":                             "set both",
		"--slots 2":                               "set both",
		"--workers -1 --slots 1":                  "--workers -1",
		"--workers 1001 --slots 1":                "from 1 to 1000",
		"--workers 1 --slots 101":                 "from 1 to 100",
		"--cpus 0":                                "--cpus 0",
		"--cpus 1025":                             "from 1 to 1024",
		"--arrivals half":                         "open or closed",
		"--service 1ns":                           "from 1us",
		"--service 2h":                            "from 1us",
		"--cpu 1.1":                               "from 0 to 1",
		"--cpu NaN":                               "from 0 to 1",
		"--delay -1ms":                            "from 0s",
		"--requests 99":                           "from 100",
		"--requests 2000001":                      "from 100",
		"--policies fastest":                      "unknown policy \"fastest\": choose from random, round-robin",
		"--policies random,oracle,random":         "duplicate random",
		"--policies packhorse:1,packhorse:01":     "duplicate packhorse:01",
		"--policies packhorse:2,packhorse:+2":     "duplicate packhorse:+2",
		"--policies packhorse:N":                  "unknown policy \"packhorse:N\"",
		"--policies packhorse:0":                  "unknown policy \"packhorse:0\"",
		"--policies random:1":                     "unknown policy \"random:1\"",
		"--policies=":                             "choose from",
		"--distribution normal":                   "fixed, exponential",
		"--distribution fixed:1":                  "only lognormal",
		"--distribution lognormal:9":              "only lognormal",
		"--distribution lognormal:NaN":            "only lognormal",
		"--load 0":                                "want loads",
		"--load -0.5":                             "want loads",
		"--load 2.1":                              "want loads",
		"--load NaN":                              "want loads",
		"--load Inf":                              "want loads",
		"--load 0.5..0.1":                         "want loads",
		"--load 0.1..1.0:0":                       "want loads",
		"--load 0.001..2:0.001":                   "want loads",
		"--load 0.00001":                          "want loads",
		"--load ,":                                "want loads",
		"--load 0.1..0.2..0.3":                    "want loads",
		"anything":                                "unknown command",
		"--requests 200 --html /none/at/all.html": "no such file",
	} {
		_, _, err := benchtest.Run(t, t.Context(), append([]string{"sched"}, strings.Fields(args)...)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", args, err, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := benchtest.Run(t, ctx, "sched"); err == nil || err.Error() != "interrupted" {
		t.Errorf("interrupted: %v", err)
	}
}

func TestSchedLoads(t *testing.T) {
	t.Parallel()
	for list, want := range map[string]string{
		"0.1..1.0":        "[0.1 0.2 0.3 0.4 0.5 0.6 0.7 0.8 0.9 1]",
		"0.3..0.5:0.05":   "[0.3 0.35 0.4 0.45 0.5]",
		"0.9, 0.2,0.2":    "[0.2 0.9]",
		"1,0.35..0.6":     "[0.35 0.45 0.55 1]",
		"0.0001..0.0001":  "[0.0001]",
		"0.5..0.55,1.999": "[0.5 1.999]",
	} {
		if got, err := parseLoads(list); err != nil || fmt.Sprint(got) != want {
			t.Errorf("%s: %v, %v, want %s", list, got, err, want)
		}
	}
}

func TestSchedCompletes(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"--policies pu":               "puma-delay",
		"--policies packhorse,random": "packhorse,random",
		"--policies oracle,two":       "oracle,two-choices",
		"--arrivals c":                "closed",
		"--distribution l":            "lognormal",
	} {
		if got := complete(t, append([]string{"sched"}, strings.Fields(args)...)); !slices.Contains(got, want) {
			t.Errorf("%s: %q", args, got)
		}
	}
	if got := complete(t, []string{"sched", "--policies", "random,random"}); slices.Contains(got, "random,random") {
		t.Errorf("the same twice: %q", got)
	}
}

func complete(t *testing.T, args []string) []string {
	t.Helper()
	var out strings.Builder
	root := benchtest.Program(loadgen.Env{Stdout: io.Discard, Stderr: io.Discard})
	root.SetOut(&out)
	root.SetErr(io.Discard)
	root.SetArgs(append([]string{"__complete"}, args...))
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	return strings.Split(out.String(), "\n")
}
