package gittest

import (
	"os"
	"testing"
	"time"
)

func TestDisk(t *testing.T) {
	t.Parallel()
	d := NewDisk(t)
	if entries, err := os.ReadDir(d.Dir); err != nil || len(entries) != 0 {
		t.Fatalf("%v %v", entries, err)
	}
	if _, err := os.Stat(d.Dir + "/x"); !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if err := os.Mkdir(d.Dir+"/x", 0o700); err == nil {
		t.Fatal("a directory was made")
	}
	d.Stop()
	found := make(chan error, 1)
	go func() {
		_, err := os.Stat(d.Dir + "/y")
		found <- err
	}()
	select {
	case err := <-found:
		t.Fatalf("a stopped disk answered: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	d.Release()
	if err := <-found; err == nil || os.IsNotExist(err) {
		t.Errorf("who waited got %v", err)
	}
}
