package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// bom is the list of all software in the release.
type bom struct {
	packages, relations []object
	known               map[string]bool // IDs of packages
}

type object map[string]any

var notID = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

// add adds a package, unless the list has it, and its relation to the element from. It returns its ID.
func (b *bom) add(from, relation, name, version, license, purl string, sum []byte) string {
	id := "SPDXRef-" + notID.ReplaceAllString(name+"-"+version, "-")
	b.relations = append(b.relations,
		object{"spdxElementId": from, "relationshipType": relation, "relatedSpdxElement": id})
	if b.known[id] {
		return id
	}
	if b.known == nil {
		b.known = map[string]bool{}
	}
	b.known[id] = true
	p := object{"SPDXID": id, "name": name, "versionInfo": version, "downloadLocation": "NOASSERTION",
		"filesAnalyzed": false, "licenseConcluded": license, "licenseDeclared": license, "copyrightText": "NOASSERTION"}
	if purl != "" {
		p["externalRefs"] = []object{
			{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}}
	}
	if len(sum) > 0 {
		p["checksums"] = []object{{"algorithm": "SHA256", "checksumValue": fmt.Sprintf("%x", sum)}}
	}
	b.packages = append(b.packages, p)
	return id
}

// addPrograms adds the programs of a tree with the modules that they link. The checksum of a module is that of go.sum,
// a SHA-256 of its files.
func (b *bom) addPrograms(tree, goos, arch, version string) {
	for _, program := range must(filepath.Glob(filepath.Join(tree, "bin/*"))) {
		sum := sha256.Sum256(must(os.ReadFile(program)))
		name := fmt.Sprintf("%s %s/%s", filepath.Base(program), goos, arch)
		id := b.add("SPDXRef-DOCUMENT", "DESCRIBES", name, version, "Apache-2.0", "", sum[:])
		info := must(buildinfo.ReadFile(program))
		compiler := strings.TrimPrefix(info.GoVersion, "go")
		b.add(id, "DEPENDS_ON", "stdlib", compiler, "BSD-3-Clause", "pkg:golang/stdlib@"+compiler, nil)
		for _, module := range info.Deps {
			sum := must(base64.StdEncoding.DecodeString(strings.TrimPrefix(module.Sum, "h1:")))
			purl := "pkg:golang/" + module.Path + "@" + url.PathEscape(module.Version)
			b.add(id, "DEPENDS_ON", module.Path, module.Version, "NOASSERTION", purl, sum)
		}
	}
}

// addImage adds an image with its packages, which are those of a status file of dpkg.
func (b *bom) addImage(arch, version string, status []byte) {
	image := b.add("SPDXRef-DOCUMENT", "DESCRIBES", "image linux/"+arch, version, "NOASSERTION", "", nil)
	for _, program := range []string{"packhorse", "packhorse-search"} {
		b.add(image, "CONTAINS", program+" linux/"+arch, version, "", "", nil)
	}
	for paragraph := range bytes.SplitSeq(status, []byte("\n\n")) {
		fields := map[string]string{}
		for line := range strings.Lines(string(paragraph)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
			fields[name] = value
		}
		if name := fields["Package"]; name != "" {
			version, arch := fields["Version"], fields["Architecture"]
			purl := fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s", name, url.QueryEscape(version), arch)
			b.add(image, "CONTAINS", name+"/"+arch, version, "NOASSERTION", purl, nil)
		}
	}
}

// document returns the list in the format SPDX 2.3.
func (b *bom) document(r *release) []byte {
	return must(json.MarshalIndent(object{
		"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
		"name":              "packhorse-" + r.Version,
		"documentNamespace": "https://github.com/packhorse-git/packhorse/spdx/" + r.Version + "-" + r.revision,
		"creationInfo": object{"created": r.time.Format(time.RFC3339),
			"creators": []string{"Organization: The Packhorse authors", "Tool: packhorse-release-" + r.Version}},
		"packages": b.packages, "relationships": b.relations}, "", "  "))
}
