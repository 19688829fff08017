package gitload

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

func TestReportLeavesForeignMetricsOut(t *testing.T) {
	t.Parallel()
	out := &loadgen.Outcome{Bytes: 1e9, Elapsed: time.Second, Failures: &loadgen.Failures{}}
	r := newFetchReport(out, nil, loadgen.Metrics{}, loadgen.Metrics{loadgen.Allocated: 1e6, loadgen.Served: 1e6})
	if r.AllocPerGB != nil {
		t.Error("used the metrics of a server that served less than the clients received, want none")
	}
	r = newFetchReport(out, nil, loadgen.Metrics{loadgen.Allocated: 1e6, loadgen.Served: 5},
		loadgen.Metrics{loadgen.Allocated: 3e6, loadgen.Served: 5 + 1e9, loadgen.Written: 1e6})
	if r.AllocPerGB == nil || *r.AllocPerGB != 2 || *r.DiskWritePerByte != 0.001 {
		t.Errorf("%+v", r)
	}
}

func TestParseRefs(t *testing.T) {
	t.Parallel()
	id := strings.Repeat("1f", 20)
	b := pktline.AppendLine(nil, id+" HEAD symref-target:refs/heads/main")
	b = pktline.AppendLine(b, id+" refs/tags/v1 peeled:"+id)
	b = pktline.AppendLine(b, "unborn refs/heads/x")
	b = pktline.AppendFlush(b)
	refs, err := ParseRefs(b)
	if err != nil || len(refs) != 3 || refs[0].symref != "refs/heads/main" || refs[1].Id != git.MustParseObjectID(id) {
		t.Errorf("%v, %v", refs, err)
	}
	if got, err := DefaultRef(refs); got != "refs/heads/main" || err != nil {
		t.Errorf("default ref %q, %v", got, err)
	}
	if tips := coldTips(refs); len(tips) != 1 {
		t.Errorf("tips %v, want 1 of them", tips)
	}
	for n := range b {
		if _, err := ParseRefs(b[:n]); err == nil {
			t.Errorf("a ref list cut at %d was accepted", n)
		}
	}
}

func FuzzParseRefs(f *testing.F) {
	f.Add([]byte("0000"))
	f.Add(pktline.AppendFlush(pktline.AppendLine(nil, strings.Repeat("a", 40)+" refs/heads/x symref-target:y")))
	f.Add(pktline.AppendLine(nil, "ERR no"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := ParseRefs(b); err == nil && !bytes.HasSuffix(b, []byte("0000")) {
			t.Errorf("a ref list without a flush was accepted: %q", b)
		}
		Advertisement(b) //nolint:errcheck // must not panic
	})
}

func TestShapes(t *testing.T) {
	t.Parallel()
	target, err := loadgen.ParseTarget("http://host/x", false)
	if err != nil {
		t.Fatal(err)
	}
	var list refList
	for _, digit := range []string{"1", "2"} {
		list.Refs = append(list.Refs, ref{Id: git.MustParseObjectID(strings.Repeat(digit, 40)), Name: "refs/heads/" + digit})
	}
	first := func(seed uint64) *shapes {
		s, err := newShapes(target, &list, seed)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := first(5)
	seen := map[string]bool{}
	for request := s.next(0); request != nil; request = s.next(0) {
		if seen[string(request)] {
			t.Fatalf("the same request again:\n%q", request)
		}
		seen[string(request)] = true
	}
	if len(seen) > 3*MaxColdDepth || len(seen) < 2*MaxColdDepth || !s.exhausted {
		t.Errorf("%d shapes of two tips", len(seen))
	}
	if bytes.Equal(first(5).next(0), first(6).next(0)) {
		t.Error("two seeds begin with the same shape, want different ones")
	}
}
