package process

import (
	"testing"
	"time"
)

func TestStarting(t *testing.T) {
	t.Parallel()
	r := new(Runner)
	if d := r.Starting(); d != 0 {
		t.Errorf("nothing starts, for %v, want 0", d)
	}
	endOne, endOther := r.starts.begin(new(Process)), r.starts.begin(new(Process))
	began := time.Now()
	endOne()
	time.Sleep(time.Millisecond)
	if d := r.Starting(); d < time.Since(began)-time.Minute || d <= 0 {
		t.Errorf("one starts for %v", d)
	}
	endOther()
	if d := r.Starting(); d != 0 {
		t.Errorf("nothing starts any more, for %v, want 0", d)
	}
}
