package process

import (
	"runtime"
	"testing"
	"time"
)

// TestContention checks that the usage of running commands is reported once.
func TestContention(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("what processes wait for is known on Linux")
	}
	r := newRunner(t, fakeGitPath, Limits{Slots: 2, Nice: 10})
	if ran, waited := r.Contention(); ran != 0 || waited != 0 {
		t.Errorf("nothing runs: %v, %v, want 0, 0", ran, waited)
	}
	began := time.Now()
	p, err := r.Start(t.Context(), script("sh -c 'while :; do :; done'; :")) // a grandchild
	if err != nil {
		t.Fatal(err)
	}
	var ran, waited time.Duration
	for ran < 50*time.Millisecond {
		more, wait := r.Contention()
		ran, waited = ran+more, waited+wait
		time.Sleep(time.Millisecond)
	}
	if all := 2 * time.Since(began); ran > all || waited > all {
		t.Errorf("in %v two processes ran for %v and waited for %v", all/2, ran, waited)
	}
	p.Kill()
	_, _ = p.Wait()
	if ran, waited := r.Contention(); ran != 0 || waited != 0 {
		t.Errorf("after the end: %v, %v, want 0, 0", ran, waited)
	}
}
