package worker

import (
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"
)

// The client reads bytes in the order of the writes. Those during a search do not wait for it, and the others do.
func TestOutbox(t *testing.T) {
	t.Parallel()
	own, client := net.Pipe() // takes bytes only when the client reads
	var total atomic.Int64
	o := newOutbox(own, &total, 1<<20)
	write := func(s string, searching bool) error {
		o.searching = searching
		_, err := io.WriteString(o, s)
		return err
	}
	for _, s := range []string{"a", "b", "c"} {
		if err := write(s, true); err != nil {
			t.Fatal(err)
		}
	}
	written := make(chan error, 1)
	go func() { written <- write("d", false) }()
	select {
	case err := <-written:
		t.Fatalf("Write after the search did not wait for the client: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	got := make([]byte, 4)
	if _, err := io.ReadFull(client, got); err != nil || string(got) != "abcd" {
		t.Errorf("got %q, %v, want abcd", got, err)
	}
	if err := <-written; err != nil || total.Load() != 0 {
		t.Errorf("Write: got %v and %d waiting bytes, want neither", err, total.Load())
	}
	if err := write("e", true); err != nil {
		t.Error(err)
	}
	client.Close()
	if write("f", false) == nil {
		t.Error("Write: got no error of an earlier write, want one")
	}
}
