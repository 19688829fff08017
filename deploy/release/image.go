package main

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// image writes the image of all architectures as the archive of an OCI layout.
func (r *release) image(architectures []string) {
	var config v1.Config // that of the Containerfile; a test compares them
	check(json.Unmarshal(must(os.ReadFile("deploy/container/config.json")), &config))
	config.Labels["org.opencontainers.image.version"] = r.Version
	config.Labels["org.opencontainers.image.revision"] = r.revision
	config.Labels["org.opencontainers.image.created"] = r.time.Format(time.RFC3339)
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range architectures {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: r.platformImage(arch, config),
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
	}
	// The layout's own index has one entry, the image, with a name.
	named := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: index, Descriptor: v1.Descriptor{
		Annotations: map[string]string{"org.opencontainers.image.ref.name": r.Version}}})
	dir := filepath.Join(r.work, "image")
	must(layout.Write(dir, named))
	r.write("packhorse_"+r.Version+"_oci.tar", r.tar(dir, ""))
}

// platformImage returns the image for an architecture: a layer of Debian, and one of the programs.
func (r *release) platformImage(arch string, config v1.Config) v1.Image {
	debian, programs := filepath.Join(r.work, arch+".tar"), filepath.Join(r.work, arch+"-programs")
	tree, bin := filepath.Join(r.work, "linux_"+arch), filepath.Join(programs, "usr/local/bin")
	check(os.MkdirAll(bin, 0o755))
	for _, name := range []string{"packhorse", "packhorse-search"} {
		check(os.Link(filepath.Join(tree, "bin", name), filepath.Join(bin, name)))
	}
	for _, name := range []string{"LICENSE", "THIRD-PARTY-LICENSES"} {
		copyTo(filepath.Join(programs, "usr/share/doc/packhorse"), filepath.Join(tree, "share/doc/packhorse", name))
	}
	write(programs+".tar", r.tar(programs, ""))
	r.bom.addImage(arch, r.Version, fileOfTar(debian, "./var/lib/dpkg/status"))

	created := v1.Time{Time: r.time}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image = must(mutate.ConfigFile(image, &v1.ConfigFile{OS: "linux", Architecture: arch, Created: created, Config: config,
		RootFS: v1.RootFS{Type: "layers"}}))
	for _, file := range []string{debian, programs + ".tar"} {
		layer := must(tarball.LayerFromFile(file, tarball.WithMediaType(types.OCILayer),
			tarball.WithCompressionLevel(gzip.DefaultCompression)))
		history := v1.History{Created: created, CreatedBy: "make release", Comment: filepath.Base(file)}
		image = must(mutate.Append(image, mutate.Addendum{Layer: layer, History: history}))
	}
	return image
}

// fileOfTar returns the content of a file in an archive.
func fileOfTar(archive, name string) []byte {
	file := must(os.Open(archive))
	defer file.Close()
	for in := tar.NewReader(file); ; {
		if must(in.Next()).Name == name {
			return must(io.ReadAll(in))
		}
	}
}
