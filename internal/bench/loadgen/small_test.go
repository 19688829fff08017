package loadgen

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestPercentiles(t *testing.T) {
	t.Parallel()
	var s Samples
	for i := range 200 {
		s = append(s, time.Duration(i+1)*time.Millisecond)
	}
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(s), func(i, j int) { s[i], s[j] = s[j], s[i] })
	if got, want := s.Summarize(), (Percentiles{100, 190, 198, 200}); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	if got, want := (Samples{7 * time.Microsecond}).Summarize(), (Percentiles{0.007, 0.007, 0.007, 0.007}); got != want {
		t.Errorf("one sample: %v, want %v", got, want)
	}
	if got := Samples(nil).Summarize(); got != (Percentiles{}) {
		t.Errorf("no samples: %v", got)
	}
	// By definition: the smallest sample that at least this percentage of samples does not exceed.
	rng := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		s := make(Samples, 1+rng.IntN(50))
		for i := range s {
			s[i] = time.Duration(rng.IntN(20))
		}
		slices.Sort(s)
		for _, p := range []int{50, 95, 99} {
			got := s.rank(p)
			enough := func(d time.Duration) bool {
				n := 0
				for _, v := range s {
					if v <= d {
						n++
					}
				}
				return n*100 >= p*len(s)
			}
			if !enough(got) || !slices.Contains(s, got) {
				t.Fatalf("p%d of %v is %d", p, s, got)
			}
			for _, v := range s {
				if v < got && enough(v) {
					t.Fatalf("p%d of %v is %d, but %d will do", p, s, got, v)
				}
			}
		}
	}
}

// TestPace reads with an invented clock. The reads keep the rate, and no burst follows a pause.
func TestPace(t *testing.T) {
	t.Parallel()
	const perSecond = 10e6
	start := time.Unix(1000, 0)
	now := start
	p := newPace(perSecond, now)
	var total int64
	read := func(until time.Time) {
		for now.Before(until) {
			n, wait := p.take(1<<30, now)
			if n == 0 {
				now = now.Add(wait)
				continue
			}
			total += n
			p.spend(n)
		}
	}
	read(start.Add(10 * time.Second))
	if want := 10 * perSecond; float64(total) < 0.99*want || float64(total) > 1.01*want {
		t.Errorf("%d bytes in 10 s, want %.0f", total, want)
	}
	total = 0
	now = now.Add(time.Hour)
	begin := now
	read(begin.Add(time.Millisecond))
	if burst := perSecond * paceStep.Seconds(); float64(total) > 2*burst {
		t.Errorf("%d bytes at once after a pause, want at most %.0f", total, 2*burst)
	}
	if n, _ := p.take(1, now.Add(time.Second)); n != 1 {
		t.Errorf("asked for a byte, got %d, want 1", n)
	}
}

func TestParseMetrics(t *testing.T) {
	t.Parallel()
	c, err := parseMetrics(strings.NewReader(`# HELP packhorse_served_bytes_total text
packhorse_served_bytes_total{path="a} b"} 3e+09
packhorse_served_bytes_total{path="c"} 5 1700000000
packhorse_served_bytes_total_other 9
go_memstats_alloc_bytes_total 1.5e+06
packhorse_cache_written_bytes_total 7
packhorse_search_repositories{state="behind"} 2
packhorse_search_repositories{state="failed"} 1
packhorse_search_repositories{state="fresh"} 3
packhorse_search_repositories{state="waiting"} 4
packhorse_git_commands_total{class="pack",subcommand="pack-objects",result="ok"} 6
packhorse_git_commands_total{class="push",subcommand="receive-pack",result="ok"} 7
packhorse_git_cpu_seconds_total{class="pack",subcommand="pack-objects",mode="user"} 0.5
packhorse_git_cpu_seconds_total{class="pack",subcommand="pack-objects",mode="system"} 0.25
packhorse_packs_made_total{source="git"} 6
packhorse_packs_made_total{source="native"} 8
packhorse_pack_fallbacks_total{reason="missing"} 2
packhorse_pack_seconds_bucket{stage="select",le="+Inf"} 8
packhorse_pack_seconds_sum{stage="select"} 0.125
packhorse_pack_seconds_sum{stage="write"} 3
packhorse_pack_bytes_total{representation="reused_disk"} 10
packhorse_pack_bytes_total{representation="reused_cache"} 11
packhorse_pack_bytes_total{representation="encoded"} 12
`))
	if err != nil {
		t.Fatal(err)
	}
	for want, got := range map[float64]float64{
		3e9 + 5: c.Sum(Served), 1.5e6: c.Sum(Allocated), 10: c.Sum("packhorse_search_repositories"),
		6: c.Sum(Commands, PackGit), 13: c.Sum(Commands), 0.75: c.Sum(GitCPU, PackGit), 8: c.Native(), 0.125: c.Sum(Select),
		0.5: c.Sum(GitCPU, PackGit, `mode="user"`),
	} {
		if got != want {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	if d := c.Since(Metrics{Written: 3}); d.Sum(Written) != 4 || d.Sum(Write) != 3 {
		t.Errorf("the increase is %v", d)
	}
	if _, err := parseMetrics(strings.NewReader("go_memstats_alloc_bytes_total 1\n")); err == nil {
		t.Error("accepted another program's metrics, want an error")
	}
}

// TestTree runs a shell with a spinning child. The child's CPU time counts while it runs and after its end.
func TestTree(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("no /proc")
	}
	cmd := exec.Command("sh", "-c",
		`read go; sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done'; echo done; read end`)
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer in.Close()
	w, err := WatchTree(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(in, "go")
	if _, err := out.Read(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	u := w.Stop()
	if u.Cpu < 20*time.Millisecond || u.Anon <= 0 {
		t.Errorf("used %+v", u)
	}
	if _, err := WatchTree(1 << 30); err == nil {
		t.Error("watching a process that does not exist: got no error, want one")
	}
}

func TestPost(t *testing.T) {
	t.Parallel()
	target, err := ParseTarget("https://me:se%20cret@host:444/a%20b.git/", true)
	if err != nil {
		t.Fatal(err)
	}
	got := string(target.Post("git-upload-pack", "gzip", []byte("BODY")))
	want := "POST /a%20b.git/git-upload-pack HTTP/1.1\r\nHost: host:444\r\nUser-Agent: " + UserAgent + "\r\n" +
		"Content-Type: application/x-git-upload-pack-request\r\nAccept: application/x-git-upload-pack-result\r\n" +
		"Git-Protocol: version=2\r\nContent-Encoding: gzip\r\nAuthorization: Basic bWU6c2UgY3JldA==\r\nContent-Length: " +
		"4\r\n\r\nBODY"
	if got != want {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
	if target.String() != "https://host:444/a%20b.git" {
		t.Errorf("shown as %s", target)
	}
}

// TestTreeGrandchildren lets a grandchild spin and end between two scans. Its time counts as part of its parents'
// times.
func TestTreeGrandchildren(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("sh", "-c",
		`read go; sh -c 'sh -c "i=0; while [ \$i -lt 300000 ]; do i=\$((i+1)); done"; true'; echo done; read end`)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer in.Close()
	w, err := WatchTree(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(in, "go")
	if _, err := out.Read(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	if used := w.Stop(); used.Cpu == 0 {
		t.Errorf("no CPU time counted for a loop of 300,000 steps in a grandchild")
	}
}
