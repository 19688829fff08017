//go:build !linux

package objects

import (
	"io/fs"
	"os"
	"time"
)

// LastUse returns when the file of an object was renewed.
func LastUse(info fs.FileInfo) time.Time { return info.ModTime() }

func (leaf) touch(time.Time) {}

func hideReads(*os.File) {}
