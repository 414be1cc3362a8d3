# Short names for the scripts and presets; the work is done there.
.PHONY: demo test asan tsan tidy fuzz format install clean

demo:
	sh deploy/demo.sh

test:
	sh deploy/test.sh release

asan:
	sh deploy/test.sh asan

tsan:
	sh deploy/test.sh tsan

tidy:
	sh deploy/ci/install-deps.sh --tidy
	sh deploy/ci/tidy.sh --all

fuzz:
	sh deploy/fuzz.sh

format:
	git ls-files '*.hpp' '*.cpp' '*.h' '*.cu' '*.cuh' | xargs clang-format -i

# PREFIX=/usr/local is CMake's default; DESTDIR is honoured.
PREFIX ?= /usr/local
install:
	cmake --preset release
	cmake --build --preset release --parallel 2
	cmake --install build/release --prefix $(PREFIX)

clean:
	rm -rf build
