package control

import (
	"net/http"

	"connectrpc.com/connect"
	"connectrpc.com/grpcreflect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	healthv1 "github.com/packhorse-git/packhorse/proto/packhorse/health/v1"
)

// reflection describes the services to whoever asks (github.com/grpc/grpc, doc/server-reflection.md), in both versions of that service.
func reflection(mux *http.ServeMux, services []string, options ...connect.HandlerOption) {
	health, err := healthFile()
	if err != nil {
		panic("control: the definition of the health service: " + err.Error()) // the same in every process: no test passes
	}
	reflector := grpcreflect.NewReflector(
		grpcreflect.NamerFunc(func() []string { return services }),
		grpcreflect.WithDescriptorResolver(descriptions{health}),
	)
	mux.Handle(grpcreflect.NewHandlerV1(reflector, options...))
	mux.Handle(grpcreflect.NewHandlerV1Alpha(reflector, options...))
}

// descriptions finds what is described: the health service under gRPC's name for it, and all that is linked into the program.
type descriptions struct{ health *protoregistry.Files }

func (d descriptions) FindFileByPath(path string) (protoreflect.FileDescriptor, error) {
	if file, err := d.health.FindFileByPath(path); err == nil {
		return file, nil
	}
	return protoregistry.GlobalFiles.FindFileByPath(path)
}

func (d descriptions) FindDescriptorByName(name protoreflect.FullName) (protoreflect.Descriptor, error) {
	if found, err := d.health.FindDescriptorByName(name); err == nil {
		return found, nil
	}
	return protoregistry.GlobalFiles.FindDescriptorByName(name)
}

// healthFile is the definition of the health service by gRPC's names: our messages under its package, and the service.
func healthFile() (*protoregistry.Files, error) {
	const in, out = ".grpc.health.v1.HealthCheckRequest", ".grpc.health.v1.HealthCheckResponse"
	file := protodesc.ToFileDescriptorProto(healthv1.File_packhorse_health_v1_health_proto)
	file.Name, file.Package, file.Options = proto.String("grpc/health/v1/health.proto"), proto.String("grpc.health.v1"), nil
	for _, message := range file.MessageType {
		for _, field := range message.Field {
			if field.TypeName != nil { // the one that is no scalar
				field.TypeName = proto.String(out + ".ServingStatus")
			}
		}
	}
	file.Service = []*descriptorpb.ServiceDescriptorProto{{Name: proto.String("Health"), Method: []*descriptorpb.MethodDescriptorProto{
		{Name: proto.String("Check"), InputType: proto.String(in), OutputType: proto.String(out)},
		{Name: proto.String("Watch"), InputType: proto.String(in), OutputType: proto.String(out), ServerStreaming: proto.Bool(true)},
	}}}
	return protodesc.NewFiles(&descriptorpb.FileDescriptorSet{File: []*descriptorpb.FileDescriptorProto{file}})
}
