//go:build !linux

package objects

import "os"

func startWriteback(*os.File, int64, int64) {}
