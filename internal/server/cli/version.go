package cli

import "runtime/debug"

// Version is the version of the programs that are built from this source.
const Version = "0.1.0"

// Revision returns the commit of the source, abbreviated: the given one of the linker, else what the build recorded, or
// "".
func Revision(linked string) string {
	if info, ok := debug.ReadBuildInfo(); ok && linked == "" {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				linked = s.Value
			}
		}
	}
	return linked[:min(len(linked), 12)]
}
