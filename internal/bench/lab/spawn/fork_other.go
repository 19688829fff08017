//go:build !linux

package spawn

import "errors"

func canFork() error { return errors.New("plain fork needs Linux: use --method spawn") }

func newForks(string, int64) (starter, error) { return nil, canFork() }

func enoughFiles(int) error { return nil }

func killFirst() {}

func smallPages([]byte) {}

func freeMemory() (int64, bool) { return 0, false }
