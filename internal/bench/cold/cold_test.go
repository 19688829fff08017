package cold

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/benchtest"
	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

const keys = "git rounds bitmaps repositories"

// rowsOf returns the rows of the only repository in a JSON report.
func rowsOf(t *testing.T, got map[string]any) []row {
	t.Helper()
	text, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	var r report
	if err := json.Unmarshal(text, &r); err != nil || len(r.Repositories) != 1 {
		t.Fatalf("got %s (%v), want one repository", text, err)
	}
	return r.Repositories[0].Rows
}

func needLinux(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("reads CPU times from /proc")
	}
}

// TestCold measures all cases with a server that is git http-backend.
func TestCold(t *testing.T) {
	needLinux(t)
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	_, repo := benchtest.History(t, 60)
	before := repo.Git("for-each-ref")
	rows := rowsOf(t, benchtest.JSON(t, keys, "cold", repo.Dir, "--rounds", "1", "--packhorse", os.Args[0]))
	var names []string
	for _, r := range rows {
		names = append(names, r.Case)
		a, b := r.Server, r.Upload
		if ratio := a.Pack / b.Pack; !(ratio > 0.5 && ratio < 2) || r.Objects == 0 || a.First <= 0 || a.Took < a.First {
			t.Errorf("%s: got %+v, want a pack like git's", r.Case, r)
		}
		if strings.HasPrefix(r.Case, firstJob) {
			if r.Samples != jobs || a.CPU != nil || !strings.Contains(r.By, "0 hit, 0 follow of 10") {
				t.Errorf("%s: got %+v, want %d samples without CPU time", r.Case, r, jobs)
			}
			continue
		}
		// the fake adds a CPU second for each pack
		if a.CPU == nil || *a.CPU < 1000 || *a.CPU > 2000 || *b.CPU <= 0 || r.By != "git: estimate" {
			t.Errorf("%s: got %+v, want a little more than a CPU second", r.Case, r)
		}
	}
	want := []string{"depth-1", "depth-20", "full", "blob-none", "incremental", "depth-1 after 1", "depth-20 after 1",
		"full after 1", "depth-1 after 10", "depth-20 after 10", "full after 10", "depth-1 after 50", "depth-20 after 50",
		"full after 50", "first-job, no warm-up", "first-job, warm-up"}
	if !slices.Equal(names, want) {
		t.Errorf("rows are %q, want %q", names, want)
	}
	if after := repo.Git("for-each-ref"); after != before {
		t.Errorf("refs of the repository are\n%s\nwant\n%s", after, before)
	}
}

// TestColdSynthetic measures a synthetic repository, and a bundle whose history is short.
func TestColdSynthetic(t *testing.T) {
	needLinux(t)
	t.Parallel()
	rows := rowsOf(t, benchtest.JSON(t, keys, "cold", "--objects", "2000", "--rounds", "1", "--bitmaps=false",
		"--packhorse", os.Args[0]))
	if len(rows) != 1 || rows[0].Case != full || rows[0].Objects < 1900 || rows[0].Objects > 2100 {
		t.Errorf("got %+v, want a full clone of about 2000 objects", rows)
	}
	_, repo := benchtest.History(t, 2)
	bundle := filepath.Join(t.TempDir(), "short.bundle")
	repo.Git("bundle", "create", "-q", bundle, "--all", "HEAD")
	out, errs, err := benchtest.Run(t, t.Context(), "cold", bundle, "--rounds", "1", "--case", "incremental,depth-1,push",
		"--packhorse", os.Args[0])
	if err != nil || !strings.Contains(out, "\nshort\n") || !strings.Contains(out, " depth-1 after 1 ") ||
		strings.Contains(out, incremental) || strings.Contains(out, "after 10") {
		t.Errorf("got error %v and\n%s%s\nwant depth-1 and a push of one commit", err, out, errs)
	}
}

func TestColdMisuse(t *testing.T) {
	t.Parallel()
	_, repo := benchtest.History(t, 1)
	for want, args := range map[string][]string{
		"no repository":  nil,
		"--rounds 0":     {repo.Dir, "--rounds", "0"},
		`--case "most"`:  {repo.Dir, "--case", "most"},
		"--objects 3":    {"--objects", "3"},
		"does not exist": {filepath.Join(t.TempDir(), "none")},
		"has no commit":  {gittest.Init(t).Dir},
	} {
		_, errs, err := benchtest.Run(t, t.Context(), append([]string{"cold", "--packhorse", os.Args[0]}, args...)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("cold %q: got error %v, want %q\n%s", args, err, want, errs)
		}
	}
}

// TestVerify checks packs that lack an object or have a wrong byte.
func TestVerify(t *testing.T) {
	t.Parallel()
	_, repo := benchtest.History(t, 5)
	wants := whole.request(readRefs(t.Context(), repo.Dir), nil).Wants
	all := repo.Git("rev-list", "--objects", "--all", "--no-object-names")
	pack := func(objects string) string {
		file := filepath.Join(t.TempDir(), "p")
		sum := repo.GitIn(objects+"\n", "pack-objects", "-q", file)
		text, err := os.ReadFile(file + "-" + strings.TrimSpace(sum) + ".pack")
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	good := pack(all)
	middle := len(good) / 2
	for name, test := range map[string]struct {
		pack string
		ok   bool
	}{
		"whole":      {good, true},
		"no tree":    {pack(strings.ReplaceAll(all, repo.ID("main^{tree}").String(), repo.ID("main").String())), false},
		"wrong byte": {good[:middle] + string(good[middle]^1) + good[middle+1:], false},
	} {
		client := gittest.InitAt(t, filepath.Join(t.TempDir(), "client.git"))
		err := gitload.VerifyPack(t.Context(), client.Dir, strings.NewReader(test.pack), "", wants, nil)
		if (err == nil) != test.ok {
			t.Errorf("%s: got error %v, want success %t", name, err, test.ok)
		}
	}
}

// TestRow summarizes invented samples.
func TestRow(t *testing.T) {
	t.Parallel()
	at := func(ms int, pack int64) *sample {
		return &sample{cpu: time.Duration(ms) * time.Millisecond,
			answer: gitload.Answer{Pack: pack, First: time.Duration(ms) * time.Millisecond, Took: time.Second}}
	}
	r := report{Git: "2", Rounds: 3, Repositories: []repository{{"demo", []row{newRow(&series{name: "depth-1 after 10",
		ours: []*sample{at(30, 1e6), at(10, 1e6), at(20, 1e6)}, git: []*sample{at(100, 2e6), at(200, 2e6), at(300, 2e6)}})}}}}
	var b strings.Builder
	if err := r.print(&b); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	got := strings.Join(strings.Fields(lines[len(lines)-1]), " ")
	if want := "depth-1 after 10 20.0 200.0 0.100 20.0 200.0 1000.0 1000.0 1.000 2.000 -"; got != want {
		t.Errorf("got the row %q, want %q", got, want)
	}
}

// TestSynthesize checks the number of objects and their size.
func TestSynthesize(t *testing.T) {
	t.Parallel()
	for _, n := range []int{minObjects, 12345} {
		path := filepath.Join(t.TempDir(), "s.git")
		if err := synthesize(t.Context(), path, n); err != nil {
			t.Fatal(err)
		}
		repo := gittest.At(t, path)
		count := strings.Count(repo.Git("rev-list", "--objects", "--all"), "\n") + 1
		if count < n*9/10 || count > n*11/10 {
			t.Errorf("synthesize(%d): got %d objects, want about as many", n, count)
		}
		repo.Git("fsck", "--strict")
	}
	var histories [2]bytes.Buffer
	for i := range histories {
		writeHistory(&histories[i], 5000)
	}
	if !bytes.Equal(histories[0].Bytes(), histories[1].Bytes()) {
		t.Error("two histories of the same size differ, want equal ones")
	}
}
