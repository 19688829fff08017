//go:build !linux

package reaper

func serve() {}
