package protocol

import "strings"

// Version is a version of Git's wire protocol. Version 1 is version 0 with one more line at its begin
// (gitprotocol-pack(5), "Extra Parameters").
type Version uint8

const (
	V0 Version = iota
	V1
	V2
)

// String is as in "v2".
func (v Version) String() string { return [...]string{"v0", "v1", "v2"}[v] }

// ParseVersion parses the Git-Protocol header of HTTP: keys separated by colons (gitprotocol-v2(5), "HTTP Transport").
// It returns the highest known version, 0 if there is none.
func ParseVersion(header string) Version {
	version := V0
	for key := range strings.SplitSeq(header, ":") {
		switch key {
		case "version=1":
			version = max(version, V1)
		case "version=2":
			version = V2
		}
	}
	return version
}

// Service is one of Git's services.
type Service string

const (
	UploadPack  Service = "git-upload-pack"  // fetches
	ReceivePack Service = "git-receive-pack" // pushes
)
